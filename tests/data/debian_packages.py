"""Small Debian packages with text in the forms of the real ones, in a repository that apt-get can use."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Callable, Mapping

SUBJECTS = ("The baker", "A sailor", "My sister", "That farmer", "The king", "Each son", "A boy", "He")
VERBS = ("has seen", "will follow", "could draw", "had forgotten", "should visit", "may like", "must paint")


def sentences(name: str, count: int) -> list[str]:
    """`count` different whole sentences, others for each name."""
    found = []
    for index in range(count):
        subject, verb = SUBJECTS[index % 8], VERBS[index // 8 % 7]
        number = "".join(chr(97 + int(digit)) for digit in str(index))
        found.append(f"{subject} {verb} the {name} of the {number} house near our river.")
    return found


def gcide(folder: Path) -> None:
    """Entries of a dictionary; the first has all that is to go."""
    text = "00-database-short\n     A dictionary\n\n"
    text += 'Abjure \\Ab*jure"\\, v. t. [imp. & p. p. {Abjured}; [L. jurare to swear.]\n'
    text += "   See {Jury}.]\n   1. To renounce upon oath; to forswear.\n      [1913 Webster]\n\n"
    text += '      (b) He has abjured errors. "Magic I here\n      abjure." --Shak. [1913 Webster]\n\n'
    text += "   Syn: It is the same as {renounce}.\n"
    for index, sentence in enumerate(sentences("dictionary", 1600)):
        text += f'\nWord{index} \\Word"{index}\\ (w[^u]rd), n. (Naut.)\n   {sentence} [Obs.]\n'
    (folder / "usr/share/dictd").mkdir(parents=True)
    (folder / "usr/share/dictd/gcide.dict.dz").write_bytes(gzip.compress(text.encode()))


def wordnet(folder: Path) -> None:
    """The four files of synsets, and the patterns of verbs."""
    place = folder / "usr/share/wordnet"
    place.mkdir(parents=True)
    for part in ("noun", "verb", "adj", "adv"):
        lines = ['  1 This is the licence; "it is no example"\n']
        for index, sentence in enumerate(sentences(part, 400)):
            example = sentence[0].lower() + sentence[1:-1]
            lines.append(
                f'{index:08} {index // 200:02} n 01 word 0 000 | a gloss; "{example}"; "not one"  \n'
            )
        (place / f"data.{part}").write_text("".join(lines), encoding="utf-8")
    (place / "sents.vrb").write_text("1 The children %s to the playground\n2 They %s it\n", encoding="utf-8")
    verbs = "".join(f"{verb}%2:38:00:: 1\n" for verb in ("walk", "run", "ride", "drive", "fly", "return"))
    (place / "sentidx.vrb").write_text(f"{verbs}look_up%2:31:00:: 2,1\n", encoding="utf-8")


def packed_window(text: bytes) -> bytes:
    """`text`, 250 bytes at most, as compress(1) may write it: a code of nine bits for each byte."""
    bits = sum(byte << 9 * place for place, byte in enumerate(text))
    return bits.to_bytes(-(-9 * len(text) // 8), "little")


def bible(folder: Path) -> None:
    """Verses in windows of 240 bytes; a verse has a semicolon and does not end a sentence."""
    verses = ["A heading without a verse"]
    for index, sentence in enumerate(sentences("Bible", 1600)):
        verses.append(f"Ge{1 + index // 20}:{1 + 2 * (index % 20)} {sentence[:-1]};")
        verses.append(f"Ge{1 + index // 20}:{2 + 2 * (index % 20)} and it was so.")
    text = "\n".join(verses).encode()
    windows = [packed_window(text[start : start + 240]) for start in range(0, len(text), 240)]
    places = [92 + 4 * (len(windows) + 1)]
    for window in windows:
        places.append(places[-1] + len(window))
    header = b"EC02Compressed Data File".ljust(84, b"\0") + struct.pack(">II", 240, len(windows))
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/bible.data").write_bytes(
        header + struct.pack(f">{len(places)}I", *places) + b"".join(windows)
    )


def austen(folder: Path) -> None:
    """Two novels as R has them, the first in an older version of the format, broken lines."""
    database = b""
    for version, name in ((2, "Emma"), (3, "Persuasion")):
        lines = [name.upper(), "", "Chapter 1", ""]
        for index, sentence in enumerate(sentences(name, 800)):
            begin, rest = sentence.split(" of ")
            lines += [begin, f"of {rest}", ""] + (["CHAPTER II.", ""] if index == 400 else [])
        content = b"X\n" + struct.pack(">iii", version, 0x40201, 0x30500)
        content += struct.pack(">i", 5) + b"UTF-8" if version == 3 else b""
        content += struct.pack(">ii", 16, len(lines))
        content += b"".join(struct.pack(">ii", 0x40009, len(line)) + line.encode() for line in lines)
        database += struct.pack(">I", len(content)) + zlib.compress(content)
    place = folder / "usr/lib/R/site-library/janeaustenr/data"
    place.mkdir(parents=True)
    (place / "Rdata.rdb").write_bytes(database)


def python_doc(folder: Path) -> None:
    """A page of reStructuredText, which a link names once more."""
    place = folder / "usr/share/doc/python3.77/html/_sources"
    (place / "library").mkdir(parents=True)
    text = "Title\n=====\n\n.. function:: f(x)\n\n   Returns ``x``, *if* it is there::\n\n       y = f(x)\n\n"
    text += "\n\n".join(sentences("page", 1600))
    (place / "library/f.rst.txt").write_text(text, encoding="utf-8")
    (place / "library/g.rst.txt").symlink_to("f.rst.txt")


def anarchism(folder: Path) -> None:
    """A page of sections."""
    place = folder / "usr/share/doc/anarchism/html"
    place.mkdir(parents=True)
    text = "".join(
        f"<p>{each.replace('the', '<i>the</i>')}</p><h3>No. {each}</h3>" for each in sentences("state", 1600)
    )
    (place / "secA.html").write_text(
        f"<html><head><title>It is no text.</title></head>{text}", encoding="utf-8"
    )


def endless_sky(folder: Path) -> None:
    """Missions with conversations."""
    place = folder / "usr/share/games/endless-sky/data"
    place.mkdir(parents=True)
    text = "# It is a comment.\n"
    for index, sentence in enumerate(sentences("ship", 1600)):
        text += "" if index % 10 else f'mission "Number {index}"\n\tdescription "Fly to <planet>."\n'
        text += f"\t\t\t`\t\u201c{sentence}\u201d`\n\t\t\t`It has <name> in it.`\n"
    (place / "missions.txt").write_text(text, encoding="utf-8")


CONTENTS: Mapping[str, Callable[[Path], None]] = {
    "dict-gcide": gcide,
    "wordnet-base": wordnet,
    "bible-kjv-text": bible,
    "r-cran-janeaustenr": austen,
    "python3.77-doc": python_doc,
    "anarchism": anarchism,
    "endless-sky-data": endless_sky,
}


def repository(place: Path) -> dict[str, str]:
    """Build the packages and a repository of them below `place`, and a standard library; returns the
    environment for apt-get to use the repository and nothing else."""
    entries = []
    archives = place / "archives"
    archives.mkdir()
    for name, fill in (*CONTENTS.items(), ("python3-doc", None)):
        folder = place / "contents" / name
        (folder / "DEBIAN").mkdir(parents=True)
        depends = "Depends: python3.77-doc\n" if fill is None else ""
        (folder / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: a test <t@localhost>\n"
            f"{depends}Description: {name}\n",
            encoding="utf-8",
        )
        if fill is not None:
            (folder / "usr/share/doc" / name).mkdir(parents=True)
            (folder / "usr/share/doc" / name / "copyright").write_text(f"{name} is free.\n", encoding="utf-8")
            fill(folder)
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(folder), str(archives)]
        subprocess.run(command, check=True, capture_output=True)
        (archive,) = archives.glob(f"{name}_*.deb")
        content = archive.read_bytes()
        fields = (folder / "DEBIAN/control").read_text(encoding="utf-8")
        digest = hashlib.sha256(content).hexdigest()
        entries.append(f"{fields}Filename: ./{archive.name}\nSize: {len(content)}\nSHA256: {digest}\n")
    (archives / "Packages").write_text("\n".join(entries), encoding="utf-8")
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (place / name).mkdir(parents=True)
    (place / "sources.list").write_text(f"deb [trusted=yes] file:{archives} ./\n", encoding="utf-8")
    (place / "apt.conf").write_text(
        f'Dir::State "{place}/state"; Dir::State::status "{place}/status"; Dir::Cache "{place}/cache";\n'
        f'Dir::Etc::sourcelist "{place}/sources.list"; Dir::Etc::sourceparts "{place}/etc";\n'
        'APT::Sandbox::User "root";\n',
        encoding="utf-8",
    )
    (place / "status").write_text("", encoding="utf-8")
    (place / "library").mkdir()
    docstring = "\n".join(sentences("module", 1600))
    (place / "library" / "module.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    environment = {"APT_CONFIG": str(place / "apt.conf")}
    update = ["apt-get", "update"]
    subprocess.run(update, check=True, capture_output=True, env={**os.environ, **environment})
    return environment
