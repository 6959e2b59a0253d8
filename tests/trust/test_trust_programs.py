"""Real programs do the same with the recorder as without: output, exit code, and every file that they leave.

Each is a small shell script in an empty folder; what depends on time or on the process (dates, pids) is fixed or left
out by the script itself. A program that is not installed is skipped with its name.
"""

# ruff: noqa: E501 - a script of sh is one line
from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from trust.pairs import Pair, recorded_rows

GIT = (
    "export HOME=$PWD GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z"
    " GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.c; "
)
TREE = "mkdir tree; for i in $(seq 200); do mkdir -p tree/$((i % 7)); seq $i $((i * 9)) > tree/$((i % 7))/$i; done; "


@dataclass(frozen=True)
class Job:
    """A script for sh, and the programs that it needs."""

    needs: tuple[str, ...]
    script: str


QUICK = {
    "coreutils": Job(
        ("find", "grep", "sort"),
        TREE + "find tree -type f | sort | xargs cat | grep -c 7; sort -n -r tree/*/* | md5sum;"
        " cp -a tree copy; diff -r tree copy && rm -r tree; ls -R copy | md5sum",
    ),
    "tar": Job(
        ("tar", "gzip"),
        TREE + "tar --sort=name --mtime=@0 --owner=0 --group=0 -cf a.tar tree; gzip -n -k a.tar;"
        " mkdir out; tar -xzf a.tar.gz -C out; diff -r tree out/tree && md5sum a.tar a.tar.gz; find . -newermt 2000-01-01 -exec touch -d @0 {} +",
    ),
    "perl": Job(
        ("perl",),
        'perl -e \'open F, ">f"; print F $_*$_, qq(\\n) for 1..5000; close F; open F, "f"; $s += $_ while <F>; print $s;'
        " my $p = fork; if (!$p) { exit 3 } waitpid $p, 0; print qq( ), $? >> 8, qq(\\n); print `echo out; exit 4`, $? >> 8'; exit 5",
    ),
}
LONG = {
    "git": Job(
        ("git",),
        GIT + "git init -q -b main a; cd a; for i in $(seq 30); do seq $i 999 > f$((i % 9)); git add -A;"
        " git commit -q -m $i; done; git gc -q --aggressive; git fsck --full; cd ..; git clone -q a b; git -C b log --format=%H | md5sum;"
        " git -C b status --short; git -C b checkout -q HEAD~9; cat b/f* | md5sum; rm -rf a/.git b/.git",
    ),
    "sqlite3": Job(
        ("sqlite3",),
        "sqlite3 d.db 'create table t(a integer primary key, b text); pragma journal_mode=wal;"
        " with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select x, hex(x*x) from c;"
        " select count(*), sum(a), max(b) from t; pragma integrity_check; vacuum'; sqlite3 d.db 'select * from t' | md5sum",
    ),
    "rsync": Job(
        ("rsync",),
        TREE + "rsync -a --checksum tree/ there; echo more >> tree/1/1; rsync -a --checksum --delete tree/ there;"
        " diff -r tree there && echo same",
    ),
    "gcc": Job(
        ("gcc", "make"),
        "printf 'int f(int x){return x*3;}\\n' > f.c; printf 'int f(int);int main(){return f(4);}\\n' > m.c;"
        " printf 'p: f.o m.o\\n\\tgcc -o p f.o m.o\\n' > Makefile; make -s -j2 && ./p; echo $?; objdump -d p | md5sum",
    ),
    "node": Job(
        ("node",),
        'node -e \'const fs=require("fs"),c=require("child_process");fs.writeFileSync("f","x".repeat(1e6));'
        'console.log(fs.readFileSync("f").length,c.execSync("echo child")+"");fs.createReadStream("f")'
        '.pipe(fs.createWriteStream("g")).on("finish",()=>{console.log(fs.statSync("g").size);process.exit(7)})\'',
    ),
    "java": Job(
        ("java", "javac"),
        "printf 'import java.nio.file.*;public class M{public static void main(String[] a)throws Exception{"
        'Files.write(Path.of("f"),new byte[100000]);System.out.println(Files.readAllBytes(Path.of("f")).length);'
        'Thread t=new Thread(()->System.out.println("t"));t.start();t.join();System.exit(6);}}\' > M.java; javac M.java && java -Xmx64m M',
    ),
    "rust": Job(
        ("rustc",),
        'printf \'use std::{fs,thread};fn main(){fs::write("f",vec![1u8;100000]).unwrap();let h:Vec<_>=(0..4).map(|i|'
        'thread::spawn(move||fs::read("f").unwrap().len()+i)).collect();for t in h{println!("{}",t.join().unwrap())}'
        "std::process::exit(8)}' > m.rs; rustc -C linker=gcc m.rs && ./m; echo $?; rm -f m",
    ),
    "go": Job(
        ("go",),
        'export HOME=$PWD GOFLAGS=-mod=mod; printf \'package main\\nimport ("fmt";"os")\\nfunc main(){os.WriteFile("f",make([]byte,9999),0600);'
        'b,_:=os.ReadFile("f");fmt.Println(len(b));os.Exit(4)}\' > m.go; go run m.go; rm -rf .cache go',
    ),
    "fio": Job(
        ("fio",),
        "fio --name=a --size=4m --rw=randrw --bs=4k --ioengine=psync --verify=crc32c --do_verify=1 --output=/dev/null"
        " --randseed=7; echo $?; rm -f a.* *.state",
    ),
    "strace": Job(("strace",), "strace -f -o /dev/null sh -c 'echo under; exit 3'; echo $?"),
    "python": Job(
        ("python3",),
        'python3 -c \'import multiprocessing as m, subprocess as s, tempfile, os\nif __name__ == "__main__":\n'
        ' with m.get_context("fork").Pool(3) as p: print(sum(p.map(abs, range(-500, 0))))\n'
        ' print(s.run(["cat"], input=b"x" * 99999, stdout=s.PIPE).stdout.__len__())\n raise SystemExit(9)\'',
    ),
}


def check(job: Job, folder: Path) -> None:
    missing = [name for name in job.needs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    pair = Pair(folder)
    plain, traced = pair.run(["/bin/sh", "-c", job.script])
    assert plain.output, plain.errors
    assert (traced.code, traced.output, traced.errors) == (plain.code, plain.output, plain.errors)
    assert traced.files == plain.files
    assert recorded_rows(pair.run_dir) > 0


@pytest.mark.parametrize("name", QUICK)
def test_same_effects(tmp_path: Path, name: str) -> None:
    check(QUICK[name], tmp_path)


@pytest.mark.trust
@pytest.mark.parametrize("name", LONG)
def test_same_effects_of_large_programs(tmp_path: Path, name: str) -> None:
    check(LONG[name], tmp_path)
