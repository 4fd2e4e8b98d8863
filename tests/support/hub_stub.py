"""Loopback servers, and stubs of the Hugging Face Hub: one serves folders, one takes commits."""

import base64
import hashlib
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from commands import Ran, run

COMMIT = "1" * 40


class Quiet(BaseHTTPRequestHandler):
    """Logs nothing, and closes each connection: once its server ends, nothing answers any more."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def reply(self, what: Any, code: int = 200, head: Mapping[str, str] | None = None) -> None:
        """Sends bytes, or anything else as JSON."""
        content = what if isinstance(what, bytes) else json.dumps(what).encode()
        self.send_response(code)
        for key, value in {**(head or {}), "content-length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def served(folders: Mapping[str, Path]) -> Generator[str]:
    """Serves folders by their path on the Hub, such as datasets/OWNER/NAME; yields its URL."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).removeprefix("/").removeprefix("api/")
            path = path.removeprefix("models/")
            name = next((name for name in folders if path.startswith(name + "/")), path)
            if name not in folders:
                return self.reply({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            root, (kind, _, rest) = folders[name], path.removeprefix(name)[1:].partition("/")
            if kind == "resolve":
                return self.send_file(root / rest.partition("/")[2])
            if kind == "tree":
                below = "**/*" if "recursive=t" in self.path.lower() else "*"
                files = sorted((root / rest.partition("/")[2]).glob(below))
                return self.reply([entry(file, root) for file in files])
            names = [{"rfilename": e["path"]} for e in every(root) if e["type"] == "file"]
            about: dict[str, Any] = {"id": name.partition("/")[2], "sha": COMMIT, "siblings": names}
            return self.reply({**about, "tags": [], "private": False, "gated": False})

        do_HEAD = do_GET

        def send_file(self, path: Path) -> None:
            head = {"X-Repo-Commit": COMMIT}
            if not path.is_file():
                return self.reply({}, 404, {**head, "X-Error-Code": "EntryNotFound"})
            content, etag = path.read_bytes(), entry(path, path.parent)["oid"]
            return self.reply(content, 200, {**head, "ETag": f'"{etag}"'})

    with serving(Handler) as url:
        yield url


SESSION = """
import json, os, sys
from pathlib import Path
from hub_stub import served

home, folders, online, offline = sys.argv[1], *map(json.loads, sys.argv[2:])
with served({name: Path(folder) for name, folder in folders.items()}) as url:
    os.environ |= {"HF_ENDPOINT": url, "HF_HOME": home}
    from commands import here  # not before: the libraries read these when they are imported

    ran = [here(*words) for words in online]
ran += [here(*words) for words in offline]
sys.stdout.write(json.dumps(ran))
"""


def with_hub(
    home: Path, folders: Mapping[str, Path], online: list[list[str]], offline: list[list[str]]
) -> list[Ran]:
    """Runs commands in a process with a Hub that serves these folders, then others without it."""
    given = [{name: str(folder) for name, folder in folders.items()}, online, offline]
    ran = run("-c", SESSION, home, *map(json.dumps, given))
    assert (ran.code, "Retrying" in ran.err) == (0, False), ran.err
    return [Ran(*each) for each in json.loads(ran.out)]


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Answers requests on a free port of this machine while the block lasts; yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Hub(Quiet):
    """Takes a commit whose files are all in it, and refuses repositories of `other`."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        rows = [json.loads(line) for line in body.splitlines()]
        kind = "datasets/" if "dataset" in (rows[0].get("type"), *self.path.split("s/")) else ""
        url = f"http://{self.headers['host']}/{kind}me/{rows[0].get('name')}"
        answer: dict[str, Any] = {"url": url, "commitOid": "0", "commitUrl": url}
        if "preupload" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in rows[0]["files"]]
            answer = {"files": [{**file, "shouldIgnore": False} for file in files]}
        for row in rows:
            if row.get("key") == "file":
                self.kept[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
        is_refused = rows[0].get("organization") == "other" or rows[0].get("private") is False
        self.reply(answer, 403 if is_refused else 200)


def every(root: Path) -> list[dict[str, Any]]:
    return [entry(path, root) for path in sorted(root.rglob("*"))]


def entry(path: Path, root: Path) -> dict[str, Any]:
    content = path.read_bytes() if path.is_file() else b""
    about = {"oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
    kind = "file" if path.is_file() else "directory"
    return {"type": kind, "path": path.relative_to(root).as_posix(), **about}
