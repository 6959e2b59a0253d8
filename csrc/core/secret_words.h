// Words by which scrubbing.cpp recognises secrets. SPDX-License-Identifier: Apache-2.0
//
// Generated from stashtrace/scrubbing/secrets.py by scripts/docs/generate_guest_words.py; do not edit.
#pragma once

#include <cstddef>
#include <string_view>

// clang-format off
namespace stashtrace::secret_words {

inline constexpr std::string_view kSecrets[] = {
    "apitoken", "authorization", "bearer", "credential", "credentials", "creds", "dbpass", "hftoken", "jwt", "keypass",
    "mysqlpwd", "sas", "secret", "sshpass", "storepass", "token", "userpwd", "webhook"};
inline constexpr std::string_view kSuffixes[] = {
    "accesskey", "accesstoken", "accountkey", "apikey", "authtoken", "bearertoken", "bottoken", "clientsecret",
    "openaikey", "passcode", "passphrase", "passwd", "password", "privatekey", "refreshtoken", "sastoken", "secretkey",
    "sessiontoken", "usertoken"};
inline constexpr std::string_view kKeys[] = {
    "access", "account", "admin", "anthropic", "api", "app", "auth", "aws", "azure", "bitbucket", "clearml",
    "cloudflare", "cohere", "comet", "consumer", "dagshub", "databricks", "datadog", "dd", "deepseek", "discord",
    "docker", "encryption", "fireworks", "gcp", "gemini", "github", "gitlab", "google", "grafana", "groq", "heroku",
    "hf", "hmac", "huggingface", "jina", "jwt", "kaggle", "langsmith", "license", "mailgun", "master", "minio",
    "mistral", "mlflow", "neptune", "ngc", "npm", "nvidia", "openai", "openrouter", "perplexity", "pinecone", "private",
    "pypi", "replicate", "roboflow", "runpod", "sas", "secret", "sendgrid", "sentry", "serper", "service", "shared",
    "signing", "slack", "snowflake", "storage", "stripe", "subscription", "swanlab", "tavily", "telegram", "together",
    "twilio", "voyage", "wandb", "xai"};
inline constexpr std::string_view kAccounts[] = {
    "admin", "become", "cert", "database", "db", "docker", "ftp", "git", "http", "https", "imap", "key", "keystore",
    "ldap", "login", "mail", "mongo", "mysql", "pg", "postgres", "proxy", "redis", "registry", "root", "smtp", "sql",
    "ssh", "store", "sudo", "truststore", "user", "wandb"};
inline constexpr std::string_view kSigners[] = {
    "amz", "goog", "oss"};
inline constexpr std::string_view kIssuers[] = {
    "ado", "azure", "bitbucket", "devops", "docker", "ext", "gh", "git", "github", "gitlab", "gl", "hub", "npm"};
inline constexpr std::string_view kEndings[] = {
    "id", "value"};
inline constexpr std::string_view kAddresses[] = {
    "uri", "url"};
inline constexpr std::string_view kAlone[] = {
    "auth", "key", "pat", "sig"};
inline constexpr std::string_view kVocabulary[] = {
    "bos", "cls", "eos", "image", "mask", "pad", "per", "sep", "special", "stop", "unk"};
inline constexpr std::string_view kRefusals[] = {
    "ask", "no", "skip", "without"};
inline constexpr std::string_view kUsers[] = {
    "login", "u", "user"};
inline constexpr std::string_view kProxies[] = {
    "preproxy", "proxy", "x"};
inline constexpr std::string_view kCookies[] = {
    "cookie"};
inline constexpr std::string_view kAuthorizations[] = {
    "apikey", "aws4-hmac-sha256", "basic", "bearer", "digest", "negotiate", "ntlm", "token"};
inline constexpr std::string_view kNetrc[] = {
    "account", "login", "machine"};
inline constexpr std::string_view kNoValues[] = {
    "any", "bool", "bytes", "dict", "false", "float", "int", "list", "none", "null", "object", "optional", "str",
    "string", "true", "tuple", "union"};
inline constexpr std::string_view kAwsKeys[] = {
    "ABIA", "ACCA", "AKIA", "ASIA"};
inline constexpr std::string_view kSchemes[] = {
    "abfs", "abfss", "adl", "amqp", "amqps", "az", "b2", "cos", "dav", "davs", "dbfs", "ftp", "ftps", "gcs", "git",
    "gs", "hdfs", "hf", "http", "https", "mongodb", "mysql", "obs", "oss", "postgres", "postgresql", "r2", "redis",
    "rediss", "s3", "s3a", "s3n", "sftp", "smb", "ssh", "swift", "wasb", "wasbs", "webdav", "webhdfs", "ws", "wss"};
struct Shape {
  std::string_view begin, signs;
};
inline constexpr Shape kShapes[] = {
    {"AGE-SECRET-KEY-", ""}, {"AIza", "_-"}, {"ATATT3", "_-"}, {"GOCSPX-", "_-"}, {"KGAT_", ""}, {"SG.", "_-"},
    {"api_org_", ""}, {"dapi", ""}, {"dckr_oat_", "_-"}, {"dckr_pat_", "_-"}, {"discord.com/api/webhooks/", "_-/"},
    {"discordapp.com/api/webhooks/", "_-/"}, {"doo_v1_", ""}, {"dop_v1_", ""}, {"dor_v1_", ""}, {"eyJ", "_-."}, {"fw_",
    ""}, {"gho_", ""}, {"ghp_", ""}, {"ghr_", ""}, {"ghs_", ""}, {"ghu_", ""}, {"github_pat_", "_-"}, {"glagent-",
    "_-"}, {"glcbt-", "_-"}, {"gldt-", "_-"}, {"glft-", "_-"}, {"glpat-", "_-"}, {"glptt-", "_-"}, {"glrt-", "_-"},
    {"glsa_", "_-"}, {"glsoat-", "_-"}, {"gsk_", ""}, {"hf_", ""}, {"hooks.slack.com/services/", "_-/"}, {"hvs.", "_-"},
    {"lsv2_pt_", ""}, {"lsv2_sk_", ""}, {"npm_", ""}, {"nvapi-", "_-"}, {"pcsk_", "_-"}, {"pplx-", ""}, {"pypi-AgE",
    "_-"}, {"r8_", ""}, {"rk_live_", ""}, {"rk_test_", ""}, {"rpa_", ""}, {"sk-", ""}, {"sk-None-", "_-"}, {"sk-admin-",
    "_-"}, {"sk-ant-", "_-"}, {"sk-lf-", "_-"}, {"sk-or-", "_-"}, {"sk-proj-", "_-"}, {"sk-svcacct-", "_-"},
    {"sk_live_", ""}, {"sk_test_", ""}, {"tskey-", "_-"}, {"tvly-", "_-"}, {"wandb_v1_", "_-"}, {"whsec_", ""}, {"xai-",
    ""}, {"xapp-", "_-"}, {"xoxa-", "_-"}, {"xoxb-", "_-"}, {"xoxe-", "_-"}, {"xoxe.xoxp-", "_-"}, {"xoxp-", "_-"},
    {"xoxr-", "_-"}, {"xoxs-", "_-"}, {"ya29.", "_-"}};
inline constexpr std::size_t kAwsKeyLength = 16;
inline constexpr std::size_t kShortestToken = 20;
inline constexpr std::size_t kLongestName = 128;
inline constexpr std::size_t kShortestValue = 6;

}  // namespace stashtrace::secret_words
