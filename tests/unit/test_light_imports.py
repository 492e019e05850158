"""The run path stays light: neither torch nor transformers is imported to open a model."""

import subprocess
import sys

from tests.tiny import tiny_gguf

CODE = """
import sys
from pathlib import Path
from kt.models.families import spec
from kt.tokenizer import load
from kt.weights.checkpoint import open_checkpoint
checkpoint = open_checkpoint(Path(sys.argv[1]))
spec(checkpoint)
load(checkpoint).encode_chat([{"role": "user", "content": "x"}])
print(sorted({"torch", "transformers", "gguf", "huggingface_hub"} & sys.modules.keys()))
"""


def test_opening_a_model_imports_nothing_heavy(tmp_path):
    path = tiny_gguf(tmp_path / "x.gguf", num_hidden_layers=1)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
