"""What an editor shows of settings: the answers of basedpyright's language server.

    python -m benchmarks.editor

Opens a script that uses `redline.train`, and asks for completions behind `lea` and for what is
wrong. The answers go to benchmarks/results/editor.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import redline

RESULTS = Path(__file__).parent / "results"
CALL = "redline.train('ppo', env='CartPole-v1', lea"
SCRIPT = f"""import redline
redline.train('ppo', env='CartPole-v1', learning_rat=1e-3)
redline.train('sac', env='Pendulum-v1', batch_size='many')
{CALL})
"""


class LanguageServer:
    """One session over standard input and output.

    Args:
        folder: the workspace.
    """

    def __init__(self, folder: Path) -> None:
        command = str(Path(sys.executable).with_name("basedpyright-langserver"))
        self._process = subprocess.Popen(
            [command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.diagnostics: list[Any] | None = None
        self._folder = folder

    def send(self, **message: Any) -> None:
        """Send a request, a notification or an answer."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message."""
        assert self._process.stdout is not None  # noqa: S101 (it is a pipe)
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return json.loads(self._process.stdout.read(length))

    def answer_to(self, number: int) -> Any:
        """Wait for the result of a request, answering what the server asks meanwhile."""
        while True:
            message = self.receive()
            if message.get("method") == "textDocument/publishDiagnostics":
                self.diagnostics = message["params"]["diagnostics"]
            elif "method" in message and "id" in message:
                is_settings = message["method"] == "workspace/configuration"
                self.send(id=message["id"], result=[{}] if is_settings else None)
            elif message.get("id") == number:
                return message["result"]

    def open(self, file: Path) -> None:
        """Begin the session and open a file."""
        where = {"uri": self._folder.as_uri(), "name": "script"}
        parameters = {
            "processId": os.getpid(),
            "rootUri": where["uri"],
            "capabilities": {},
            "workspaceFolders": [where],
        }
        self.send(id=1, method="initialize", params=parameters)
        self.answer_to(1)
        self.send(method="initialized", params={})
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1}
        document["text"] = file.read_text()
        self.send(method="textDocument/didOpen", params={"textDocument": document})

    def complete(self, file: Path, line: int, character: int) -> list[str]:
        """What may stand at a place."""
        where = {"line": line, "character": character}
        parameters = {"textDocument": {"uri": file.as_uri()}, "position": where}
        self.send(id=2, method="textDocument/completion", params=parameters)
        return [item["label"] for item in self.answer_to(2)["items"]]

    def errors(self) -> list[tuple[int, str]]:
        """Line, from 1, and first sentence of what is wrong, once the server has said so."""
        while self.diagnostics is None:
            self.receive_diagnostics()
        return [
            (each["range"]["start"]["line"] + 1, each["message"].splitlines()[0])
            for each in self.diagnostics
            if each["severity"] == 1
        ]

    def receive_diagnostics(self) -> None:
        """Take the next message, and keep it if it says what is wrong."""
        message = self.receive()
        if message.get("method") == "textDocument/publishDiagnostics":
            self.diagnostics = message["params"]["diagnostics"]

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


def main() -> None:
    """Ask, print, and write the answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = str(Path(redline.__file__).parents[1])
        (folder / "pyrightconfig.json").write_text(
            json.dumps({"extraPaths": [source], "pythonPath": sys.executable})
        )
        file = folder / "script.py"
        file.write_text(SCRIPT)
        server = LanguageServer(folder)
        try:
            server.open(file)
            labels = server.complete(file, 3, len(CALL))
            settings = [label for label in labels if label.endswith("=")]
            errors = [error for error in server.errors() if error[0] < 4]
        finally:
            server.close()
    found = "".join(f"- line {line}: {message}\n" for line, message in errors)
    text = (
        "# What an editor shows\n\nAnswers of basedpyright's language server "
        "(`python -m benchmarks.editor`) for this script:\n\n"
        f"```python\n{SCRIPT}```\n\nCompletions behind `lea` in the last line that are "
        f"arguments: {', '.join(f'`{label}`' for label in settings)}.\n\nErrors:\n\n{found}"
    )
    print(text)
    (RESULTS / "editor.md").write_text(text)


if __name__ == "__main__":
    main()
