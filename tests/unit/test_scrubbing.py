"""The rule for secrets in command lines, on the cases that the native half is held to as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stashtrace.analysis.io.data_files import is_data_file
from stashtrace.scrubbing.pseudonyms import Scrubber, Survey
from stashtrace.scrubbing.secrets import scrub_arguments, scrub_urls

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "scrubbed_arguments.json").read_text(encoding="utf-8"))
NAMES = json.loads((DATA / "scrubbed_names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("given", "expected"), CASES, ids=lambda words: " ".join(words))
def test_secrets_go_and_the_rest_stays(given: list[str], expected: list[str]) -> None:
    assert scrub_arguments(given) == expected
    assert scrub_arguments(expected) == expected, "a second time changes nothing"


def test_what_is_taken_out_is_reported() -> None:
    """`scrub` removes it wherever else it stands."""
    for words, _ in CASES:
        taken: set[str] = set()
        scrub_arguments(words, taken)
        assert all(value in " ".join(words) for value in taken)
        assert "<scrubbed>" not in " ".join(scrub_arguments(words)) or taken or "<scrubbed>" in " ".join(words)


@pytest.mark.parametrize(("given", "expected"), NAMES)
def test_addresses_as_names_of_files(given: str, expected: str) -> None:
    taken: set[str] = set()
    assert scrub_urls(given, taken) == expected
    assert scrub_urls(expected) == expected
    assert bool(taken) == (given != expected)


def test_folders_before_an_address_get_pseudonyms() -> None:
    """A relative name that is a URL is stored behind the working directory."""
    new = Scrubber(Survey(), b"key", paths=True).path("/home/me/project/https://host/a/b.bin")
    assert new.endswith(".bin")
    assert "/https://" in new
    assert not {"home", "me", "project", "host", "a"} & set(new.split("/"))


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/home/me/build/libops.so.1.2",
        "/home/me/v/lib/python3.14t/json/tables.dat",
        "/home/me/v/site-packages/torch/version.txt",
        "/home/me/train.py",
        "/etc/localtime",
        "/data/me/a.jpg",
        "/home/me/lib/b.h5",
        "relative/c.tar",
    ],
)
def test_pseudonyms_leave_data_data_and_programs_programs(path: str) -> None:
    new = Scrubber(Survey(), b"key", paths=True).path(path)
    assert new != path
    assert "me" not in new.split("/")
    assert is_data_file(new) == is_data_file(path)


ORDINARY = r"""
torchrun --standalone --nproc-per-node 2 train.py --max-tokens 512 --tokenizer gpt2 --pattern *.py --lr 3e-4
python -m pip install sk-learn scikit-learn==1.2 --no-cache-dir && python -u train.py key_dim=64 author=jane
author: jane@uni.edu --head-key 3 --sort-key time --cache-key v2 --key image --auth none --pat *.jpg --sig SIGTERM
Traceback (most recent call last):
  File "/home/me/token/secret.py", line 3, in get_token
    token = self.tokenizer.next_token()
    token = tokenizer(text, max_length=5)
    secret = args.secret
    key, sub = jax.random.split(key)
    def decode(token: str, n: int) -> Optional[str]:
    password = getpass.getpass()
    if token == other_token and token != x:
KeyError: 'token'
RuntimeError: CUDA error: an illegal memory access was encountered
RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!
ValueError: too many values to unpack (expected 2)
subprocess.CalledProcessError: Command '['python', 't.py', '--lr', '3']' returned non-zero exit status 1.
HF_TOKEN= python t.py
Basic training of a model; Basic usage of Bearers
docker run -u 1000:1000 -v /data:/data repo/image:tag@sha256:0123456789abcdef -e KEY=value
sk-learn-based-model-for-something-else hf_transformers_model npm_config_cache ghp_ AKIA eyJ.json glpat-x
mpirun -x NCCL_DEBUG=INFO -x PATH bash -x script.sh --proxy none http_proxy=http://proxy:3128
git clone git@github.com:me/repo.git; ssh -p 22 host; the password is wrong; login failed for user me
{"token": null, "lr": 3, "pad_token": "</s>", "max_tokens": 7}
model = AutoModel.from_pretrained("gpt2", token=None, embedding.weight=(50257, 768), attn.key_proj, out_proj=true)
s3://bucket/key /data/eyJ.json wandb: Run data is saved locally in /x/y --webhook-port 80 --token-url http://h/token
/usr/lib/python3.12/tokenize.py /data/tokens/secret/a.bin /mnt/keys/cookie.json 0123456789abcdef0123456789abcdef01234567
"""


@pytest.mark.parametrize("line", ORDINARY.strip().splitlines())
def test_ordinary_text_stays(line: str) -> None:
    assert scrub_arguments([line]) == [line]
    assert scrub_arguments(line.split()) == line.split()


#: What rules look for, again and again: a rule that looks to the end of the text for each would need hours.
PIECES = (
    *("token:x,", "a:1,token:x,", "token=x;", "&token=x", "x://", "'x://", 'token:"', "eyJ.", "sk-proj-", "AKIA", "a"),
    *("a.", "a:", "a=", "'", "x:@", "x://?#", "x='\"token:", "hooks.slack.com/services/", "x://a;token=b"),
    "-HX-Token:y",
    *("a=b;", "-----BEGIN ", "-----BEGIN RSA PRIVATE KEY ", "login l password ", "Bearer ", "Basic ", "token ", " "),
    *("x Authorization: Bearer ", "x Cookie: a=b; ", "token = ", "-u 'a ", "('--token', "),
)


@pytest.mark.thorough
def test_long_texts_cost_time_by_their_length_alone() -> None:
    """The time limit only ends what would take hours; all of it takes some seconds."""
    program = (
        "import json, sys; from stashtrace.scrubbing.secrets import scrub_arguments\n"
        "for piece in json.load(sys.stdin): scrub_arguments([piece * (200_000 // len(piece))])"
    )
    pieces = json.dumps(PIECES)
    subprocess.run([sys.executable, "-c", program], input=pieces, text=True, check=True, timeout=200)


#: Names, values and signs of which texts are made; a value of a secret holds SECRETX.
_WORDS = st.sampled_from(
    [
        *("Authorization", "Cookie", "--api-key", "--auth", "--pat", "--kaggle-key", "-u", "-x", "-H", "token"),
        *("password", "hf-token", "lr", "key", "--lr", "machine", "login", "and", "SECRETX1", "Bearer", "Basic"),
        *("dXNlcjpTRUNSRVRYMQ==", "a=b;", "me:SECRETX1@h", "3e-4", "None", "<scrubbed>", "https://h/a?SECRETX1"),
        *("ghp_SECRETX1SECRETX12345", "=", ":", "'", '"', "{", "(", ",", ";"),
    ]
)
_TEXTS = st.lists(st.tuples(_WORDS, st.sampled_from(["", " ", " ", ": ", "=", "', '"]))).map(
    lambda parts: "".join(word + sign for word, sign in parts)
)


@given(st.lists(_TEXTS, max_size=4))
def test_a_second_time_changes_nothing(arguments: list[str]) -> None:
    once = scrub_arguments(arguments)
    assert scrub_arguments(once) == once


@given(st.lists(st.text(max_size=40), max_size=4))
def test_any_text_is_scrubbed(arguments: list[str]) -> None:
    assert len(scrub_arguments(arguments)) == len(arguments)


FORMS = (
    "{n} = {v}",
    "{n}: {v}",
    "{n} : {v}",
    "{n}={v}",
    '"{n}": "{v}"',
    "'{n}': '{v}'",
    '{{"{n}":"{v}"}}',
    "('{n}', '{v}')",
    "--{n} {v}",
    "--{n}={v}",
    "['--{n}', '{v}']",
    "http://h/p?{n}={v}&x=1",
)
_DRAWN = st.text("abcXYZ0123456789", min_size=8, max_size=40).filter(lambda value: any(map(str.isdigit, value)))


@given(
    form=st.sampled_from(FORMS),
    name=st.sampled_from(["token", "password", "api_key", "hf-token", "client_secret", "cookie", "Authorization"]),
    value=_DRAWN.map(lambda value: "q" + value),
    before=st.sampled_from(["", "x ", "failed at 3: ", "lr=3 "]),
    behind=st.sampled_from(["", " and more", ", then 3", "\n  at line 7"]),
)
def test_no_form_keeps_the_value_of_a_secret(form: str, name: str, value: str, before: str, behind: str) -> None:
    text = before + form.format(n=name, v=value) + behind
    taken: set[str] = set()
    (once,) = scrub_arguments([text], taken)
    assert value not in once
    assert any(value in each for each in taken), "scrub takes it out elsewhere too"
