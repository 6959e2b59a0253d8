"""Take secrets and parts of URLs out of command lines and file names before they are stored.

``csrc/core/scrubbing.cpp`` applies the same rules inside the job, with the words below, which
``scripts/docs/generate_guest_words.py`` writes for it; ``tests/data/scrubbed_arguments.json`` and
``scrubbed_names.json`` test both.

- The value of an option, or of NAME=VALUE, whose name ends in a word such as *password* or *token*, or in *api-key* and
  similar ones, becomes ``<scrubbed>``. A name is split into words at signs and before capitals; ``--max-tokens``,
  ``--tokenizer`` and ``--token-budget`` are not secrets, nor is a token of a vocabulary, such as ``--pad-token``.
- So does the value of a header or of a field of JSON (``Authorization: Bearer X``), and what follows the colon in
  ``--user NAME:VALUE``.
- Of ``--key`` a plain word or number stays, of ``--pwd`` a path: they mean other things too.
- A URL loses user and password, its query, and its fragment from the first ``?`` or ``=`` on. Local paths stay as they
  are, unless a URL stands in one.
- An argument with blanks, such as the script of ``sh -c``, is scrubbed word by word.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterable

SCRUBBED = "<scrubbed>"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of the rules, in small letters. After a change run `python scripts/docs/generate_guest_words.py`, then build.
#: A name that ends in one of these holds a secret ...
SECRETS = _words(
    "token secret credential credentials authorization bearer cookie jwt sas userpwd sshpass hftoken apitoken "
    "mysqlpwd dbpass"
)
#: ... and one whose last word ends so: PGPASSWORD, --dbpassword.
SUFFIXES = _words(
    "password passwd passphrase apikey accesskey secretkey privatekey accountkey openaikey authtoken accesstoken "
    "bearertoken sastoken clientsecret"
)
#: ... and one that ends in "key" after one of these,
KEYS = _words(
    "api access secret auth private account storage shared encryption signing hmac license subscription service "
    "app openai anthropic azure aws gcp google gemini mistral cohere groq together replicate deepseek openrouter "
    "nvidia ngc hf huggingface wandb comet neptune clearml mlflow langsmith pinecone minio jwt sas admin"
)
#: ... in "pass" or "pwd" after one of these,
ACCOUNTS = _words(
    "user admin root login sudo become db database sql mysql postgres pg redis mongo ldap smtp mail imap ftp http "
    "https proxy registry docker git ssh key keystore truststore store cert wandb"
)
#: ... in "signature" after one of these: of presigned addresses.
SIGNERS = _words("amz goog oss")
#: Ignored at the end of a name: --aws-access-key-id, --token-value.
ENDINGS = _words("id value")
#: Before "token": one of a vocabulary.
VOCABULARY = _words("pad eos bos unk mask sep cls special image stop per")
#: A name that begins with one of these takes no secret: --no-password, --ask-pass.
REFUSALS = _words("no skip without ask")
#: Options that alone are the name of USER:PASSWORD.
USERS = _words("u user auth login")
#: Schemes of addresses of which one slash may be gone: libraries for paths make ``https:/host`` of ``https://host``.
SCHEMES = _words(
    "http https ftp ftps sftp ssh ws wss s3 s3a s3n gs gcs az adl abfs abfss wasb wasbs oss obs cos r2 b2 hf hdfs "
    "webhdfs dbfs swift webdav dav davs git smb redis rediss mongodb postgres postgresql mysql amqp amqps"
)

#: Variables of launchers that are stored of an environment; others are not.
RANK_VARIABLES = _words(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_RESTART_COUNT PMI_RANK PMI_SIZE PMI_LOCAL_RANK PMI_JOBID MPI_LOCALRANKID MPI_LOCALNRANKS PMIX_RANK "
    "PMIX_NAMESPACE PALS_RANKID PALS_LOCAL_RANKID PALS_APID FLUX_JOB_ID FLUX_JOB_SIZE FLUX_TASK_RANK "
    "FLUX_TASK_LOCAL_ID JOB_COMPLETION_INDEX CUDA_VISIBLE_DEVICES PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK "
    "PET_MAX_RESTARTS PET_STANDALONE PET_RDZV_BACKEND PET_RDZV_ID PET_RDZV_ENDPOINT PET_MASTER_ADDR PET_MASTER_PORT "
    "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_JOB_ID SLURM_JOBID SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_TASKS "
    "SLURM_STEP_NUM_NODES SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NTASKS_PER_NODE "
    "SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_RESTART_COUNT SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID "
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_NODE_RANK OMPI_COMM_WORLD_SIZE "
    "OMPI_COMM_WORLD_LOCAL_SIZE MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_SIZE "
    "MV2_COMM_WORLD_LOCAL_SIZE"
)

#: What a name says of its value: nothing; it is secret; it is unless it is a plain word; ... a path; USER:PASSWORD.
_NONE, _SECRET, _KEY, _FOLDER, _USER = range(5)
_BLANKS = " \t\n\r"
_QUOTES = "'\""
#: Before a name within a word, and behind a value within one.
_OPENERS = "=;,&|([{'\""
_CLOSERS = ";,&|)]}'\""
#: Behind the closing quote of an address.
_BEHIND_QUOTE = _BLANKS + ",)]}"
_NAME_SIGNS = "_.-"
_SCHEME_SIGNS = "+.-"
_PLAIN = re.compile(r"[a-z_.,-]*|[0-9.]*")
_ASSIGNMENT = re.compile("[=:]")


def scrub_arguments(arguments: Iterable[str], taken: set[str] | None = None) -> list[str]:
    """Return a command line without secrets, and with URLs without users and queries.

    The values that are taken out are added to ``taken``.

    Examples
    --------
    >>> scrub_arguments(["train.py", "--api-key", "X", "--max-tokens=5", "s3://me:pw@bucket/a?sig=1"])
    ['train.py', '--api-key', '<scrubbed>', '--max-tokens=5', 's3://bucket/a']
    """
    result, pending = [], _NONE
    for argument in arguments:
        scrubbed, pending = _scrub(argument, pending, set() if taken is None else taken)
        result.append(scrubbed)
    return result


def scrub_urls(text: str, taken: set[str] | None = None) -> str:
    """Return a text whose URLs have no user, password and query; values taken out are added to ``taken``."""
    if ":/" not in text:
        return text
    out, at, search = [], 0, 0
    while (colon := text.find(":/", search)) >= 0:
        scheme = _begin_of_run(text, at, colon, _SCHEME_SIGNS)
        begin = search = colon + (3 if text.startswith("://", colon) else 2)
        name = text[scheme:colon]
        if not any(c.isascii() and c.isalpha() for c in name):
            continue
        if begin == colon + 2 and name.rpartition("+")[2].lower() not in SCHEMES:
            continue
        end_of_url = _end_of_url(text, begin, text[scheme - 1] if scheme > 0 else "")
        end = _first_of("/?#", text, begin, end_of_url)
        begin_host = max(text.rfind("@", begin, end) + 1, begin)
        stop = _first_of("?#", text, end, end_of_url)
        fragment = _first_of("#", text, stop, end_of_url)
        cut = _first_of("?=", text, fragment, end_of_url)
        out += [text[at:begin], text[begin_host:stop], text[fragment:cut]]
        at = search = end_of_url
        if taken is not None:
            password = text[begin : max(begin_host - 1, begin)].partition(":")[2]
            taken |= {password, text[stop + 1 : fragment], text[cut + 1 : end_of_url]} - {""}
    return "".join([*out, text[at:]])


def is_secret(name: str) -> bool:
    """Whether a name of an option or variable says that its value is a secret."""
    return _kind_of(name) == _SECRET


def _kind_of(name: str) -> int:
    words = [word.lower() for word in _parts(name)]
    if not words or (len(words) > 1 and words[0] in REFUSALS):
        return _NONE
    # One word is a name only where it can be nothing else: `--key X`, `PASS=X`; not `f(key=...)`.
    alone = len(words) == 1 and (name.startswith("-") or not any("a" <= c <= "z" for c in name))
    while words and words[-1] in ENDINGS:
        words.pop()
    if not words:
        return _NONE
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "key":
        return _SECRET if before in KEYS else _KEY if alone else _NONE
    if last in ("pass", "pwd"):
        return _SECRET if before in ACCOUNTS or (alone and last == "pass") else _FOLDER if alone else _NONE
    if last == "signature":
        return _SECRET if before in SIGNERS else _NONE
    if last == "token" and before in VOCABULARY:
        return _NONE
    if last in SECRETS or any(last.endswith(suffix) for suffix in SUFFIXES):
        return _SECRET
    is_user = (alone and last in USERS) or (len(words) == 2 and (before, last) == ("proxy", "user"))
    return _USER if is_user and name.startswith("-") else _NONE


def _parts(name: str) -> list[str]:
    """Words of a name: parted at signs, and where a capital follows a small letter or digit."""
    parts: list[str] = []
    joined = False
    for i, c in enumerate(name):
        plain = _is_plain(c)
        if plain and joined and not ("A" <= c <= "Z" and not "A" <= name[i - 1] <= "Z"):
            parts[-1] += c
        elif plain:
            parts.append(c)
        joined = plain
    return parts


def _stays(kind: int, value: str) -> int:
    """How much of the begin of a value stays; -1: all of it, for it is no secret."""
    if kind == _KEY and _PLAIN.fullmatch(value):
        return -1
    if kind == _FOLDER and value.startswith(("/", ".", "~", "$")):
        return -1
    if kind != _USER:
        return 0
    user, colon, password = value.partition(":")
    both = user + password
    number = both.isascii() and both.isdecimal()  # docker run --user 1000:1000
    if not user or not password or password[0] in ":/\\" or user == password or number:
        return -1
    return len(user + colon)


def _scrub(argument: str, pending: int, taken: set[str]) -> tuple[str, int]:
    """One argument; ``pending`` says what the one before it says of this one, the second result that of the next."""
    if pending and not _is_option(argument) and (stay := _stays(pending, argument)) >= 0:
        taken |= {argument[stay:]} - {"", SCRUBBED}
        return argument[:stay] + (SCRUBBED if argument else ""), _NONE
    pending = _NONE
    out, at = [], 0
    while at < len(argument):
        if argument[at] in _BLANKS:
            out.append(argument[at])
            at += 1
            continue
        end = _first_of(_BLANKS, argument, at)
        word = argument[at:end]
        if pending and not _is_option(word):
            stop = _end_of_value(argument, at)
            value = argument[at:stop].strip(_QUOTES)
            if (stay := _stays(pending, value)) >= 0:
                taken |= {value[stay:]} - {"", SCRUBBED}
                out += [value[:stay], SCRUBBED]
                at, pending = stop, _NONE
                continue
        pending = _NONE
        name, equals, _ = word.partition("=")
        kind = _NONE if ":/" in name else _kind_of(name)
        if kind and equals:
            begin = at + len(name) + 1
            whole = at == 0 and argument.startswith("-")
            stop = len(argument) if whole else _end_of_value(argument, begin)
            value = argument[begin:stop].strip(_QUOTES)
            if (stay := _stays(kind, value)) >= 0:
                taken |= {value[stay:]} - {"", SCRUBBED}
                out += [name, "=", value[:stay], SCRUBBED if stop > begin else ""]
                at = stop
                continue
        elif kind and name.startswith("-"):
            out.append(word)
            at, pending = end, kind
            continue
        begin, stop = _named_within(argument, at, end)
        if begin < stop:
            taken |= {argument[begin:stop]} - {SCRUBBED}
            out += [scrub_urls(argument[at:begin], taken), SCRUBBED]
            at = stop
            continue
        out.append(scrub_urls(word, taken))
        if end < len(argument) and word.endswith("Bearer") and not _is_plain(word[-7:-6]):
            pending = _SECRET
        at = end
    return "".join(out), pending


def _named_within(argument: str, at: int, end: int) -> tuple[int, int]:
    """Where the value of the first secret name within a word stands: ``a=b;AccountKey=X``, ``"token": "X"``, a header.

    The value may reach beyond the word. What follows a URL is the URL's, but for the next parts of a connection string.
    """
    url = argument.find(":/", at, end)
    url = url if url >= 0 else end
    query = _first_of("?#", argument, url, end)
    for found in _ASSIGNMENT.finditer(argument, at, query):
        i = found.start()
        closed = i > at and argument[i - 1] in _QUOTES
        last = i - closed
        first = _begin_of_run(argument, at, last, _NAME_SIGNS)
        opener = argument[first - 1] if first > at else ""
        if opener and opener not in _OPENERS:
            continue
        is_header = found[0] == ":"
        if i >= url and (is_header or opener != ";"):
            continue
        if is_header and argument.startswith("-H", first):
            first += 2
        if first >= last or _kind_of(argument[first:last]) != _SECRET:
            continue
        begin = i + 1
        if is_header:
            if argument[begin : begin + 1] in ("", ":", "/", "\\"):
                continue
            while begin < len(argument) and argument[begin] in _BLANKS:
                begin += 1
        quote = argument[begin : begin + 1]
        closing = argument.find(quote, begin + 1) if quote and quote in _QUOTES else -1
        if i >= url and query < end:
            stop = end  # the query is the URL's, and goes with the value
        elif closing >= 0:
            begin, stop = begin + 1, closing
        elif is_header and opener and opener in _QUOTES and not closed:
            closing = argument.find(opener, begin)
            stop = closing if closing >= 0 else len(argument)
        elif is_header and not closed and at == 0 and (not opener or opener == "="):
            stop = len(argument)
        else:
            stop = _first_of(_BLANKS + _CLOSERS, argument, begin)
        if begin < stop:
            return begin, stop
    return end, end


def _is_option(word: str) -> bool:
    """Whether a word is an option and not the value of the one before it, which may begin with two dashes as well."""
    if not word.startswith("--"):
        return False
    name = word[2:].partition("=")[0]
    return not name or ("a" <= name[0] <= "z" and all(_is_plain(c) or c in _NAME_SIGNS for c in name))


def _end_of_value(text: str, at: int) -> int:
    """Where a value ends: behind its closing quote, or at a blank."""
    closing = text.find(text[at], at + 1) if text[at : at + 1] and text[at] in _QUOTES else -1
    return closing + 1 if closing >= 0 else _first_of(_BLANKS, text, at)


def _end_of_url(text: str, at: int, before: str) -> int:
    """Where a URL ends: at the quote that closes the one before it, else with the text.

    A query may hold quotes of its own: the closing one is followed by nothing that goes on with the URL.
    """
    if not before or before not in _QUOTES:
        return len(text)
    while (at := text.find(before, at)) >= 0:
        if at + 1 == len(text) or text[at + 1] in _BEHIND_QUOTE:
            return at
        at += 1
    return len(text)


def _begin_of_run(text: str, first: int, end: int, signs: str) -> int:
    """Where the run of letters, digits and these signs before ``end`` begins, not before ``first``."""
    while end > first and (_is_plain(text[end - 1]) or text[end - 1] in signs):
        end -= 1
    return end


def _is_plain(c: str) -> bool:
    return c.isascii() and c.isalnum()


def _first_of(signs: str, text: str, at: int, end: int | None = None) -> int:
    end = len(text) if end is None else end
    return next((i for i in range(at, end) if text[i] in signs), end)
