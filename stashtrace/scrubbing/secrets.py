"""Take secrets and parts of URLs out of command lines and file names before they are stored.

``csrc/core/scrubbing.cpp`` applies the same rules inside the job, with the words below, which
``scripts/docs/generate_guest_words.py`` writes for it; ``tests/data/scrubbed_arguments.json`` and
``scrubbed_names.json`` test both.

- The value of an option, or of NAME=VALUE, whose name ends in a word such as *password* or *token*, or in *api-key* and
  similar ones, becomes ``<scrubbed>``. A name is split into words at signs and before capitals; ``--max-tokens``,
  ``--tokenizer`` and ``--token-budget`` are not secrets, nor is a token of a vocabulary, such as ``--pad-token``.
- So does the value of a header or of a field of JSON (``Authorization: Bearer X``; all pairs of a cookie), what follows
  the colon in ``--user NAME:VALUE`` and ``--proxy NAME:VALUE@HOST``, and the password of a line of netrc. Of
  ``token = X`` a plain word, a call or a path stays: it may be source code.
- What has the shape of a token goes wherever it stands: the known beginning of its issuer and 20 letters or digits or
  more, a private key block, ``Basic`` and the base64 of NAME:VALUE.
- Of ``--key`` a plain word or number stays, of ``--pwd`` a path: they mean other things too.
- A URL loses user and password, its query, and its fragment from the first ``?`` or ``=`` on. Local paths stay as they
  are, unless a URL stands in one.
- An argument with blanks, such as the script of ``sh -c``, is scrubbed word by word.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from functools import cache

SCRUBBED = "<scrubbed>"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of the rules, in small letters. After a change run `python scripts/docs/generate_guest_words.py`, then build.
#: A name that ends in one of these holds a secret ...
SECRETS = _words(
    "token secret credential credentials creds authorization bearer jwt sas userpwd sshpass hftoken apitoken "
    "mysqlpwd dbpass storepass keypass webhook"
)
#: ... and one whose last word ends so: PGPASSWORD, --dbpassword.
SUFFIXES = _words(
    "password passwd passphrase passcode apikey accesskey secretkey privatekey accountkey openaikey authtoken "
    "accesstoken refreshtoken sessiontoken bottoken usertoken bearertoken sastoken clientsecret"
)
#: ... and one that ends in "key" after one of these,
KEYS = _words(
    "api access secret auth private account storage shared encryption signing hmac license subscription service "
    "app openai anthropic azure aws gcp google gemini mistral cohere groq together replicate deepseek openrouter "
    "nvidia ngc hf huggingface wandb comet neptune clearml mlflow langsmith pinecone minio jwt sas admin kaggle "
    "roboflow tavily serper jina voyage perplexity fireworks xai runpod databricks snowflake swanlab dagshub grafana "
    "datadog dd sentry twilio sendgrid stripe mailgun cloudflare heroku slack discord telegram github gitlab bitbucket "
    "docker npm pypi consumer master"
)
#: ... in "pass", "pwd" or "pw" after one of these,
ACCOUNTS = _words(
    "user admin root login sudo become db database sql mysql postgres pg redis mongo ldap smtp mail imap ftp http "
    "https proxy registry docker git ssh key keystore truststore store cert wandb"
)
#: ... in "signature" after one of these: of presigned addresses.
SIGNERS = _words("amz goog oss")
#: ... in "pat", a personal access token, after one of these.
ISSUERS = _words("github gitlab gh gl git azure ado devops ext docker bitbucket npm hub")
#: Ignored at the end of a name: --aws-access-key-id, --token-value ...
ENDINGS = _words("id value")
#: ... and these behind "webhook", whose address is the secret.
ADDRESSES = _words("url uri")
#: Options that alone are the name of a secret, unless their value is a plain word or number.
ALONE = _words("key auth pat sig")
#: Before "token": one of a vocabulary.
VOCABULARY = _words("pad eos bos unk mask sep cls special image stop per")
#: A name that begins with one of these takes no secret: --no-password, --ask-pass.
REFUSALS = _words("no skip without ask")
#: Options that alone are the name of USER:PASSWORD.
USERS = _words("u user login")
#: Options whose value may be USER:PASSWORD@HOST without a scheme, and the end of such names: https_proxy.
PROXIES = _words("x proxy preproxy")
#: Names whose value is a list: NAME=VALUE; NAME=VALUE.
COOKIES = _words("cookie")
#: How a header names the kind of its credentials, which follow.
AUTHORIZATIONS = _words("bearer basic digest token apikey negotiate ntlm aws4-hmac-sha256")
#: What stands before NAME VALUE and then "password" in a line of netrc.
NETRC = _words("machine login account")
#: What source code and documents have in place of a value: types and constants.
NO_VALUES = _words("str string bytes int float bool any object optional union list dict tuple none null true false")
#: Schemes of addresses of which one slash may be gone: libraries for paths make ``https:/host`` of ``https://host``.
SCHEMES = _words(
    "http https ftp ftps sftp ssh ws wss s3 s3a s3n gs gcs az adl abfs abfss wasb wasbs oss obs cos r2 b2 hf hdfs "
    "webhdfs dbfs swift webdav dav davs git smb redis rediss mongodb postgres postgresql mysql amqp amqps"
)

#: Letters and digits, and more signs, that tokens of a beginning consist of; "." stands for a JSON web token, which has
#: several parts, "/" for an address of a web hook.
SHAPES = {
    "": "hf_ api_org_ sk- sk_live_ sk_test_ rk_live_ rk_test_ whsec_ ghp_ gho_ ghu_ ghs_ ghr_ npm_ dop_v1_ doo_v1_ "
    "dor_v1_ dapi gsk_ r8_ xai- pplx- fw_ lsv2_pt_ lsv2_sk_ KGAT_ rpa_ AGE-SECRET-KEY-",
    "_-": "github_pat_ glpat- gldt- glrt- glcbt- glptt- glagent- glsoat- glft- pypi-AgE xoxa- xoxb- xoxe- xoxp- xoxr- "
    "xoxs- xapp- xoxe.xoxp- sk-proj- sk-svcacct- sk-admin- sk-None- sk-ant- sk-or- sk-lf- AIza ya29. GOCSPX- SG. "
    "dckr_pat_ dckr_oat_ nvapi- pcsk_ wandb_v1_ hvs. ATATT3 glsa_ tskey- tvly-",
    "_-.": "eyJ",
    "_-/": "hooks.slack.com/services/ discord.com/api/webhooks/ discordapp.com/api/webhooks/",
}
#: Beginnings of the ids of keys of AWS, and the number of capitals and digits that follow.
AWS_KEYS, AWS_KEY_LENGTH = _words("AKIA ASIA ABIA ACCA"), 16
#: The fewest signs behind one of these beginnings: shorter ones are names of people's own, which have no issuer.
SHORTEST_TOKEN = 20
#: The longest name of an option or variable: what is longer is none, so that a text costs time by its length alone.
LONGEST_NAME = 128
#: The shortest value that ``token = X`` takes for a secret: ``x1`` is a variable.
SHORTEST_VALUE = 6

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

#: What a name says of its value: nothing; it is secret; it is unless it is a plain word; ... a path; USER:PASSWORD;
#: USER:PASSWORD@HOST; a list of pairs; secret unless it looks like source code; if it is base64 of USER:PASSWORD.
_NONE, _SECRET, _KEY, _FOLDER, _USER, _PROXY, _COOKIE, _ASSIGNED, _BASIC = range(9)
_BLANKS = " \t\n\r"
_QUOTES = "'\""
#: Before a name within a word, and behind a value within one.
_OPENERS = "=;,&|([{'\""
_CLOSERS = ";,&|)]}'\""
#: Behind the closing quote of an address.
_BEHIND_QUOTE = _BLANKS + ",)]}"
_NAME_SIGNS = "_.-"
_SCHEME_SIGNS = "+.-"
_PLAIN = re.compile(r"[a-z_.,*-]*|[A-Z_]*|[0-9.]*")
#: Begins of values in source code and shells: paths, variables, calls.
_CODE = re.compile(r"[A-Za-z_.,*-]*|[0-9.]*|[/.~$%*+<-].*|.*[(\[{].*", re.DOTALL)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_ASSIGNMENT = re.compile("[=:]")
_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_SPACE = re.compile(r"[ \t\n\r]*")
_BLOCK_BEGIN, _BLOCK_END, _BLOCK_LINE = "-----BEGIN", "-----END", "-----"


def token_shapes() -> list[tuple[str, str]]:
    """Beginnings of tokens in the order in which they are tried, each with the signs that follow."""
    return sorted((begin, signs) for signs, begins in SHAPES.items() for begin in begins.split())


def _shapes() -> re.Pattern[str]:
    shapes = token_shapes()
    each = [f"{re.escape(begin)}([A-Za-z0-9{re.escape(signs)}]{{{SHORTEST_TOKEN},}})" for begin, signs in shapes]
    each += [f"{begin}([A-Z0-9]{{{AWS_KEY_LENGTH},}})(?![A-Za-z0-9])" for begin in sorted(AWS_KEYS)]
    # A token begins a word, also behind what a text writes for a line break and for another sign of a URL.
    begin = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
    return re.compile(f"{begin}(?:{'|'.join(each)})")


_SHAPES = _shapes()
_DRAWN = re.compile("[A-Z0-9]")  # what tokens have, which machines draw, and words of people seldom


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
    return _kept(text, set() if taken is None else taken) if ":/" in text else text


def _kept(text: str, taken: set[str]) -> str:
    """A text that nothing names secret: without tokens, and with URLs without users and queries."""
    return _without_tokens(_without_queries(text, taken) if ":/" in text else text, taken)


def _without_tokens(text: str, taken: set[str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        token = match[0]
        signs = match[match.lastindex or 0]
        if not (".eyJ" in signs if token.startswith("eyJ") else _DRAWN.search(signs)):
            return token
        taken.add(token)
        return SCRUBBED

    return _SHAPES.sub(replaced, text)


def _without_queries(text: str, taken: set[str]) -> str:
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
        password = text[begin : max(begin_host - 1, begin)].partition(":")[2]
        taken |= {password, text[stop + 1 : fragment], text[cut + 1 : end_of_url]} - {""}
    return "".join([*out, text[at:]])


def is_secret(name: str) -> bool:
    """Whether a name of an option or variable says that its value is a secret."""
    return _kind_of(name) in (_SECRET, _COOKIE)


def _kind_of(name: str) -> int:
    words = [word.lower() for word in _parts(name)] if len(name) <= LONGEST_NAME else []
    if not words or (len(words) > 1 and words[0] in REFUSALS):
        return _NONE
    # One word is a name only where it can be nothing else: `--key X`, `PASS=X`; not `f(key=...)`.
    alone = len(words) == 1 and (name.startswith("-") or not any("a" <= c <= "z" for c in name))
    while words and words[-1] in ENDINGS:
        words.pop()
    if not words:
        return _NONE
    if len(words) > 1 and words[-1] in ADDRESSES and words[-2] == "webhook":
        words.pop()
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if (last == "key" and before in KEYS) or (last == "pat" and before in ISSUERS):
        return _SECRET
    if last in ("pass", "pwd", "pw") and (before in ACCOUNTS or (alone and last == "pass")):
        return _SECRET
    if alone and (last in ALONE or last in ("pwd", "pw")):
        return _KEY if last in ALONE else _FOLDER
    if last == "signature" and before in SIGNERS:
        return _SECRET
    if last == "token" and before in VOCABULARY:
        return _NONE
    if last in SECRETS or any(last.endswith(suffix) for suffix in SUFFIXES):
        return _SECRET
    if last in COOKIES:
        return _COOKIE
    if last in PROXIES and (last != "x" or name == "-x"):
        return _PROXY
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


def _stays(kind: int, value: str, quoted: bool = False) -> int:
    """How much of the begin of a value stays; -1: all of it, for it is no secret."""
    if _is_type(value):
        return -1
    if kind == _KEY and (_PLAIN.fullmatch(value) or value.lower() in AUTHORIZATIONS):
        return -1
    if kind == _FOLDER and value.startswith(("/", ".", "~", "$")):
        return -1
    if kind == _ASSIGNED and not quoted and (len(value) < SHORTEST_VALUE or _CODE.fullmatch(value)):
        return -1
    if kind == _BASIC and not _is_user_in_base64(value):
        return -1
    if kind not in (_USER, _PROXY):
        return 0
    user, colon, password = value.partition(":")
    if kind == _PROXY:
        password, _, host = password.rpartition("@")
        named = user and _end_of_name(user, 0) == len(user)
        return len(user + colon) if named and password and host and "/" not in password else -1
    both = user + password
    number = both.isascii() and both.isdecimal()  # docker run --user 1000:1000
    if not user or not password or password[0] in ":/\\" or user == password or number:
        return -1
    return len(user + colon)


def _is_user_in_base64(value: str) -> bool:
    if not _BASE64.fullmatch(value):
        return False
    text = binascii.a2b_base64(value)
    return b":" in text and all(32 <= byte < 127 for byte in text)


def _scrub(argument: str, pending: int, taken: set[str]) -> tuple[str, int]:
    """One argument; ``pending`` says what the one before it says of this one, the second result that of the next."""
    if pending and not _is_option(argument):
        if _is_between(argument):
            return argument, pending
        if (stay := _stays(pending, argument)) >= 0:
            taken |= {argument[stay:]} - {"", SCRUBBED}
            return argument[:stay] + (SCRUBBED if argument else ""), _NONE
    text = _Text(argument, taken)
    text.scrub()
    return "".join(text.out), text.pending


def _is_between(word: str) -> bool:
    """Whether a word stands between a name and its secret: a sign, or how a header calls its credentials."""
    return word in ("=", ":") or word.lower() in AUTHORIZATIONS


class _Text:
    """A text that is scrubbed word by word from the left; each step goes on behind what it has kept or taken out."""

    __slots__ = ("at", "before", "end", "out", "pending", "query", "taken", "text", "url")

    def __init__(self, text: str, taken: set[str]) -> None:
        self.text, self.taken = text, taken
        self.out: list[str] = []
        self.at = self.end = self.url = self.query = 0
        self.pending = _NONE
        self.before = ("", "", "")  # begins of the two words before this one, and of this one

    def scrub(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in _BLANKS:
                self._keep(_skip_blanks(text, self.at))
                continue
            if self.at >= self.end:
                self.end = _first_of(_BLANKS, text, self.at)
                self.url = self.query = -1
                self.before = (*self.before[1:], text[self.at : min(self.end, self.at + LONGEST_NAME)])
            if self._take_block() or (self.pending and self._take_pending()):
                continue
            self.pending = _NONE
            if not (self._take_named() or self._take_spaced() or self._take_within()):
                self._keep_word()

    def _keep(self, stop: int) -> None:
        self.out.append(self.text[self.at : stop])
        self.at = stop

    def _take(self, begin: int, stop: int, kind: int = _SECRET) -> bool:
        """Take out a value, and the quotes around it; return False if it is no secret."""
        raw = self.text[begin:stop]
        value = raw.strip(_QUOTES)
        stay = _stays(kind, value, raw[:1] in _QUOTES and raw != "")
        if stay < 0:
            return False
        self.taken |= {value[stay:]} - {"", SCRUBBED}
        self.out += [value[:stay], SCRUBBED if stop > begin else ""]
        self.at = stop
        return True

    def _take_block(self) -> bool:
        """A private key: from the line that begins it to the one that ends it."""
        text, at, end = self.text, self.at, self.end
        begin = end - len(_BLOCK_BEGIN)
        if begin < at or not text.startswith(_BLOCK_BEGIN, begin):
            return False
        line = text.find(_BLOCK_LINE, end, end + LONGEST_NAME)
        if line < 0 or not text[end:line].removesuffix(" BLOCK").endswith(" PRIVATE KEY"):
            return False
        last = text.find(_BLOCK_END, line)
        stop = text.find(_BLOCK_LINE, last + len(_BLOCK_END)) if last >= 0 else -1
        self.out.append(_kept(text[at:begin], self.taken))
        self.pending = _NONE
        return self._take(begin, stop + len(_BLOCK_LINE) if stop >= 0 else len(text))

    def _take_pending(self) -> bool:
        """The value of what the word before this one names."""
        word = self.text[self.at : self.end]
        if _is_option(word):
            return False
        if _is_between(word):
            self._keep(self.end)
            return True
        if not self._take(self.at, _end_of_secret(self.text, self.at, self.pending, ""), self.pending):
            return False
        self.pending = _NONE
        return True

    def _take_named(self) -> bool:
        """``NAME=VALUE``; of ``--NAME VALUE`` and ``NAME= VALUE`` the name."""
        text, at, end = self.text, self.at, self.end
        equals = text.find("=", at, min(end, at + LONGEST_NAME + 1))
        name = text[at : equals if equals >= 0 else min(end, at + LONGEST_NAME + 1)]
        kind = _NONE if ":/" in name else _kind_of(name)
        if kind == _NONE:
            return False
        if equals < 0:
            if name.startswith("-"):
                self._keep(end)
                self.pending = kind
            return self.at == end
        begin = equals + 1
        whole = at == 0 and text.startswith("-")
        stop = len(text) if whole else _end_of_secret(text, begin, kind, "")
        self._keep(begin)
        if begin == stop < len(text):  # "token= X"; in "TOKEN= python t.py" it is empty
            self.pending = _ASSIGNED if kind in (_SECRET, _COOKIE) else _NONE
            return True
        if self._take(begin, stop, kind):
            return True
        self.at = at
        self.out.pop()
        return False

    def _take_spaced(self) -> bool:
        """The name in ``NAME = VALUE``, ``NAME : VALUE``, and in a list of arguments: ``'NAME', 'VALUE'``."""
        text, end = self.text, self.end
        comma = text[end - 1] == ","
        last = end - comma
        quoted = last > self.at and text[last - 1] in _QUOTES
        last -= quoted
        first = _begin_of_run(text, max(self.at, last - LONGEST_NAME), last, _NAME_SIGNS)
        opener = text[first - 1] if first > self.at else ""
        sign = _skip_blanks(text, end)
        follows = text[sign : sign + 2]
        if sign == end or not follows or (opener and opener not in _OPENERS) or comma > quoted:
            return False
        name = text[first:last]
        if comma:
            is_tuple = text[first - 2 : first - 1] == "(" and first - 2 >= self.at
            if follows[0] not in _QUOTES or not (name.startswith("-") or is_tuple):
                return False
            kind = _kind_of(name)
        else:
            if follows[0] not in "=:" or follows[1:] in ("=", ":", "/", "\\"):
                return False
            kind = _kind_of(name)
            kind = _ASSIGNED if kind == _SECRET else kind if kind == _COOKIE else _NONE
        if kind == _NONE:
            return False
        self.out.append(_kept(text[self.at : first], self.taken))
        self.at = first
        self._keep(sign if comma else sign + 1)
        self.pending = kind
        return True

    def _take_within(self) -> bool:
        """The value of the first secret name within a word: ``a=b;AccountKey=X``, ``"token": "X"``, a header.

        The value may reach beyond the word. What follows a URL is the URL's, but for the next parts of a connection
        string.
        """
        text, at, end = self.text, self.at, self.end
        if self.url < at:
            colon = text.find(":/", at, end)
            self.url = colon if colon >= 0 else end
            self.query = _first_of("?#", text, self.url, end)
        for found in _ASSIGNMENT.finditer(text, at, self.query):
            name = self._name_before(found.start())
            kind = _kind_of(text[name[0] : name[1]])
            if kind not in (_SECRET, _COOKIE):
                continue
            if at == 0 and name[0] in (0, 2) and end == len(text) == found.end() and found[0] == ":":
                self._keep(end)
                self.pending = kind  # its value is the next argument
                return True
            begin, stop = self._value_behind(found.start(), name[0], kind)
            if begin < stop and not _is_type(text[begin:stop]):
                self.out.append(_kept(text[at:begin], self.taken))
                return self._take_credentials(begin, stop)
        return False

    def _take_credentials(self, begin: int, stop: int) -> bool:
        value = self.text[begin:stop]
        self.at = stop
        if stop == len(self.text) and value.lower() in AUTHORIZATIONS:  # they are the next argument
            self.out.append(value)
            self.pending = _SECRET
            return True
        self.taken |= {value} - {SCRUBBED}
        self.out.append(SCRUBBED)
        return True

    def _name_before(self, sign: int) -> tuple[int, int]:
        """Where the name before a sign within this word stands; nothing if it is none."""
        text, at = self.text, self.at
        last = sign - (sign > at and text[sign - 1] in _QUOTES)
        first = _begin_of_run(text, max(at, last - LONGEST_NAME - 1), last, _NAME_SIGNS)
        opener = text[first - 1] if first > at else ""
        if opener and opener not in _OPENERS:
            return sign, sign
        is_header = text[sign] == ":"
        if sign >= self.url and (is_header or opener != ";"):
            return sign, sign
        if is_header and text.startswith("-H", first):
            first += 2
        return first, last

    def _value_behind(self, sign: int, first: int, kind: int) -> tuple[int, int]:
        text, at = self.text, self.at
        closed = text[sign - 1] in _QUOTES
        opener = text[first - 1] if first > at else ""
        is_header = text[sign] == ":"
        begin = sign + 1
        if is_header:
            if text[begin : begin + 1] in ("", ":", "/", "\\"):
                return begin, begin
            begin = _skip_blanks(text, begin)
        if sign >= self.url and self.query < self.end:
            return begin, self.end  # the query is the URL's, and goes with the value
        if (closing := _closing_quote(text, begin)) >= 0:
            return begin + 1, closing
        if is_header and opener and opener in _QUOTES and not closed:
            closing = text.find(opener, begin)
            return begin, closing if closing >= 0 else len(text)
        if is_header and not closed and at == 0 and (not opener or opener == "="):
            return begin, len(text)
        return begin, _end_of_secret(text, begin, kind, _CLOSERS)

    def _keep_word(self) -> None:
        text, at, end = self.text, self.at, self.end
        self.out.append(_kept(text[at:end], self.taken))
        self.at = end
        for scheme, kind in (("Bearer", _SECRET), ("bearer", _KEY), ("Basic", _BASIC)):
            begin = end - len(scheme)
            if text.startswith(scheme, max(begin, at)) and not (begin > at and _is_plain(text[begin - 1])):
                self.pending = kind if end < len(text) else _NONE
        if self.before[2] == "password" and self.before[0] in NETRC:
            self.pending = _SECRET


def _is_type(value: str) -> bool:
    """Whether a value is a type or a constant: ``token: str``, ``"token": null``."""
    return len(value) <= LONGEST_NAME and value.rstrip(_CLOSERS).partition("[")[0].lower() in NO_VALUES


def _is_option(word: str) -> bool:
    """Whether a word is an option and not the value of the one before it, which may begin with two dashes as well."""
    if not word.startswith("--"):
        return False
    name = word[2:].partition("=")[0]
    return not name or ("a" <= name[0] <= "z" and all(_is_plain(c) or c in _NAME_SIGNS for c in name))


def _closing_quote(text: str, at: int) -> int:
    """Where the quote stands that closes the one here; -1 if none is here, or none closes it."""
    return text.find(text[at], at + 1) if text[at : at + 1] and text[at] in _QUOTES else -1


def _end_of_secret(text: str, at: int, kind: int, closers: str) -> int:
    """Where a value ends: behind its closing quote; at a blank, but not behind the scheme of an authorization."""
    if (closing := _closing_quote(text, at)) >= 0:
        return closing + 1
    if kind == _COOKIE:
        return _end_of_pairs(text, at, ";", _BLANKS + _QUOTES + ";")
    if text.startswith(SCRUBBED, at):  # a second time changes nothing
        return at + len(SCRUBBED)
    stop = _first_of(_BLANKS + closers, text, at)
    if kind == _SECRET and text[at:stop].lower() in AUTHORIZATIONS:
        begin = _skip_blanks(text, stop)
        if stop < begin < len(text):
            return _end_of_pairs(text, begin, ",", _BLANKS + _CLOSERS)
    return stop


def _end_of_pairs(text: str, at: int, sign: str, ends: str) -> int:
    """Where ``NAME=VALUE; NAME=VALUE`` ends, or one value; ``sign`` stands between pairs."""
    while True:
        equals = _end_of_name(text, at)
        value = equals + 1 if text.startswith("=", equals) else at
        stop = value + len(SCRUBBED) if text.startswith(SCRUBBED, value) else _closing_quote(text, value) + 1
        stop = stop or _first_of(ends, text, value)
        if not text.startswith(sign, stop):
            return stop
        at = _skip_blanks(text, stop + 1)
        equals = _end_of_name(text, at)
        if equals == at or not text.startswith("=", equals):
            return stop


def _end_of_name(text: str, at: int) -> int:
    match = _NAME.match(text, at)
    return match.end() if match else at


def _skip_blanks(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _end_of_url(text: str, at: int, before: str) -> int:
    """Where a URL ends: at the quote that closes the one before it, else with the text.

    A query may itself hold quotes: the closing one is followed by nothing that goes on with the URL.
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
    match = _any_of(signs).search(text, at, end)
    return match.start() if match else max(at, end)


@cache
def _any_of(signs: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(signs)}]")
