"""BOS, end tokens and templates: found where transformers finds them."""

import json
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import processors

from kt.errors import ModelError
from kt.text import hf_tokenizer
from kt.text.chat_template import TemplateError
from kt.tokenizer import Tokenizer
from tests.tiny import CHATML, SPECIAL, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


# ---------------------------------------------------------------------------------------------


@pytest.fixture
def with_bos(tmp_path) -> Path:
    tiny_tokenizer(tmp_path, template="{{ bos_token }}" + CHATML)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bos = SPECIAL[0]
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)]),
        ]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_there_is_one_bos(with_bos):
    ours = Tokenizer(hf_tokenizer.read(with_bos, {}))
    theirs = transformers.AutoTokenizer.from_pretrained(with_bos)
    assert ours.encode("the fox") == theirs.encode("the fox")
    assert ours.encode("the fox")[0] == 0
    assert ours.encode("<|endoftext|>the fox", special=True) == ours.encode("the fox")
    assert ours.encode("the fox", add_bos=False) == ours.encode("the fox")[1:]
    ids = ours.encode_chat([{"role": "user", "content": "x"}])
    assert (
        ids
        == theirs.apply_chat_template(
            [{"role": "user", "content": "x"}], add_generation_prompt=True
        )["input_ids"]
    )
    assert ids.count(0) == 1
    (with_bos / "chat_template.jinja").write_text("{{ bos_token }}{{ bos_token }}x")
    doubled = Tokenizer(hf_tokenizer.read(with_bos, {})).encode_chat(
        [{"role": "user", "content": ""}]
    )
    assert doubled.count(0) == 1


@pytest.mark.parametrize("flag", [True, False])
def test_the_tokenizers_own_word_on_bos_wins_over_the_configs(with_bos, flag):
    path = with_bos / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": flag}))
    ours = Tokenizer(hf_tokenizer.read(with_bos, {})).encode("the fox")
    assert ours == transformers.AutoTokenizer.from_pretrained(with_bos).encode("the fox")
    assert ours[0] == 0


def test_end_tokens_come_from_all_files(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert hf_tokenizer.read(tmp_path, {"eos_token_id": 9}).eos_ids == {2, 7, 9}


@pytest.mark.parametrize(
    ("inline", "file", "want"),
    [
        ("inline", None, "inline"),
        ("inline", "file", "file"),
        (
            [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "t"}],
            None,
            "listed",
        ),
    ],
)
def test_templates_are_found_where_transformers_finds_them(folder, tmp_path, inline, file, want):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": inline}))
    if file:
        (tmp_path / "chat_template.jinja").write_text(file)
    ours = Tokenizer(hf_tokenizer.read(tmp_path, {}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    message = [{"role": "user", "content": "x"}]
    assert ours.render(message) == want == theirs.apply_chat_template(message, tokenize=False)


@pytest.mark.parametrize("broken", [7, [1], [{"name": "default"}], {"default": "x"}])
def test_a_template_of_another_kind_is_refused(folder, tmp_path, broken):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": broken}))
    with pytest.raises(ModelError, match="neither text nor named texts"):
        hf_tokenizer.read(tmp_path, {})


def test_without_a_template_rendering_is_refused(tmp_path):
    made = Tokenizer(hf_tokenizer.read(tiny_tokenizer(tmp_path, template=None), {}))
    assert not made.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        made.encode_chat([{"role": "user", "content": "x"}])


def test_a_template_that_does_not_compile_fails_the_load(tmp_path):
    described = hf_tokenizer.read(tiny_tokenizer(tmp_path, template="{% if %}"), {})
    with pytest.raises(ModelError, match="does not compile"):
        Tokenizer(described)
