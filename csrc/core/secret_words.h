// Words by which scrubbing.cpp tells secrets. SPDX-License-Identifier: Apache-2.0
//
// Generated from stashtrace/scrubbing.py by scripts/docs/generate_guest_words.py; do not edit.
#pragma once

#include <string_view>

// clang-format off
namespace stashtrace::secret_words {

inline constexpr std::string_view kSecrets[] = {
    "apitoken", "authorization", "bearer", "cookie", "credential", "credentials", "dbpass", "hftoken", "jwt",
    "mysqlpwd", "sas", "secret", "sshpass", "token", "userpwd"};
inline constexpr std::string_view kSuffixes[] = {
    "accesskey", "accesstoken", "accountkey", "apikey", "authtoken", "bearertoken", "clientsecret", "openaikey",
    "passphrase", "passwd", "password", "privatekey", "sastoken", "secretkey"};
inline constexpr std::string_view kKeys[] = {
    "access", "account", "admin", "anthropic", "api", "app", "auth", "aws", "azure", "clearml", "cohere", "comet",
    "deepseek", "encryption", "gcp", "gemini", "google", "groq", "hf", "hmac", "huggingface", "jwt", "langsmith",
    "license", "minio", "mistral", "mlflow", "neptune", "ngc", "nvidia", "openai", "openrouter", "pinecone", "private",
    "replicate", "sas", "secret", "service", "shared", "signing", "storage", "subscription", "together", "wandb"};
inline constexpr std::string_view kAccounts[] = {
    "admin", "become", "cert", "database", "db", "docker", "ftp", "git", "http", "https", "imap", "key", "keystore",
    "ldap", "login", "mail", "mongo", "mysql", "pg", "postgres", "proxy", "redis", "registry", "root", "smtp", "sql",
    "ssh", "store", "sudo", "truststore", "user", "wandb"};
inline constexpr std::string_view kSigners[] = {
    "amz", "goog", "oss"};
inline constexpr std::string_view kEndings[] = {
    "id", "value"};
inline constexpr std::string_view kVocabulary[] = {
    "bos", "cls", "eos", "image", "mask", "pad", "per", "sep", "special", "stop", "unk"};
inline constexpr std::string_view kRefusals[] = {
    "ask", "no", "skip", "without"};
inline constexpr std::string_view kUsers[] = {
    "auth", "login", "u", "user"};
inline constexpr std::string_view kSchemes[] = {
    "abfs", "abfss", "adl", "amqp", "amqps", "az", "b2", "cos", "dav", "davs", "dbfs", "ftp", "ftps", "gcs", "git",
    "gs", "hdfs", "hf", "http", "https", "mongodb", "mysql", "obs", "oss", "postgres", "postgresql", "r2", "redis",
    "rediss", "s3", "s3a", "s3n", "sftp", "smb", "ssh", "swift", "wasb", "wasbs", "webdav", "webhdfs", "ws", "wss"};

}  // namespace stashtrace::secret_words
