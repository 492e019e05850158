"""Chat templates against transformers' apply_chat_template, and what must be refused."""

import time
from datetime import datetime

import pytest
import transformers

from kt.errors import ModelError
from kt.text import chat_template
from kt.text.chat_template import MAX_SOURCE, ChatTemplate, TemplateError
from tests.tiny import CHATML, tiny_tokenizer

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "größe", "description": "<b>'&\"", "parameters": {"type": "object"}},
    }
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi there  "},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"name": "f", "arguments": {"é": [1, 2.5, True, None]}}],
    },
    {"role": "tool", "content": "\n42\n"},
    {"role": "user", "content": [{"type": "text", "text": "in parts"}]},
]
TEMPLATES = {
    "chatml": CHATML.replace("message.content", "message.content|string"),
    "bos and eos": "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ eos_token }}{% endfor %}",
    "namespace": (
        "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.found = true %}{% set ns.n = ns.n + 1 %}{% endif %}"
        "{% endfor %}{{ ns.found }} {{ ns.n }}"
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role }};{% endfor %}"
    ),
    "tojson": "{{ tools | tojson(indent=2) }}|{{ messages[2].tool_calls | tojson }}",
    "tojson, plain": "{{ tools | tojson }}",
    "tojson, sorted": "{{ tools | tojson(sort_keys=true, separators=(',', ':')) }}",
    "tojson, ascii": "{{ tools | tojson(ensure_ascii=true) }}",
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.role }} says\n{% endgeneration %}{% else %}{{ m.role }}\n{% endif %}{% endfor %}"
    ),
    "null content": "{% for m in messages %}{{ m.content is defined }}{{ m.content }}{% endfor %}",
    "slices": "{% for m in messages[1:] %}{{ m.role }}{% endfor %}{{ messages[::-1][0].role }}",
    "trim and blocks": (
        "  {% if add_generation_prompt %}\n    generate\n  {% endif %}\n"
        "{{ messages[3].content | trim }}\n"
    ),
    "reasoning": "{{ messages[2].reasoning_content }} {{ messages[2].thinking }}",
    "undefined": "[{{ nothing }}]{% if not_there %}x{% endif %}{{ messages[0].name }}",
    "extra": "{{ enable_thinking }}{{ documents }}",
    "macros": "{% macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f(messages[0].role) }}",
    "strings": "{{ messages[0].content.split(' ')[-1].rstrip('.') }}{{ 'a' in messages[0].role }}",
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return transformers.AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("t")))


def _render(source, messages=MESSAGES, *, tools=None, add_generation_prompt=True, **extra):
    template = ChatTemplate({"default": source}, SPECIAL)
    return template.render(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_text_equals_transformers(oracle, name, prompt):
    want = oracle.apply_chat_template(
        MESSAGES,
        tools=TOOLS,
        chat_template=TEMPLATES[name],
        add_generation_prompt=prompt,
        tokenize=False,
        enable_thinking=False,
    )
    found = _render(
        TEMPLATES[name], tools=TOOLS, add_generation_prompt=prompt, enable_thinking=False
    )
    assert found == want


def test_the_clock_is_this_machines():
    before = datetime.now().strftime("%d %B %Y")
    assert _render("{{ strftime_now('%d %B %Y') }}") in (
        before,
        datetime.now().strftime("%d %B %Y"),
    )


def test_a_refusal_keeps_the_templates_words():
    with pytest.raises(TemplateError) as caught:
        _render("{{ raise_exception('Roles must alternate: ' + messages[0].role) }}")
    assert caught.value.message == "Roles must alternate: system"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big|OverflowError"),
    ],
)
def test_a_template_that_fails_says_why(source, words):
    with pytest.raises(TemplateError, match=words):
        _render(source)


def test_no_messages_are_refused():
    with pytest.raises(TemplateError, match="no messages"):
        _render("x", [])


@pytest.mark.parametrize(
    "source", ["{% if %}", "{% for m in messages %}", "{{ 'x }}", "{% nonsense %}"]
)
def test_a_template_that_does_not_compile_fails_the_load(source):
    with pytest.raises(ModelError, match="'default' does not compile: line 1"):
        ChatTemplate({"default": source}, {})


def test_templates_are_chosen_by_name_as_in_transformers():
    named = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    ask = {"add_generation_prompt": True, "extra": {}}
    assert named.render(MESSAGES, tools=None, **ask) == "plain"
    assert named.render(MESSAGES, tools=TOOLS, **ask) == "tools"
    with pytest.raises(TemplateError, match="no default: rag, other"):
        ChatTemplate({"rag": "", "other": ""}, {}).render(MESSAGES, tools=None, **ask)


def test_the_callers_messages_stay_as_they_are():
    messages = [{"role": "user", "content": None, "thinking": "x"}]
    _render("{{ messages }}", messages)
    assert messages == [{"role": "user", "content": None, "thinking": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in b %}" * 30 + "x" + "{% endfor %}" * 30,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if a %}" * 120 + "{% endif %}" * 120,
        "{{ a" + ".b" * 20000 + " }}",
        "{% macro f(a, a) %}{% endmacro %}",
        "x" * (MAX_SOURCE + 1),
    ],
)
def test_what_does_not_compile_is_the_models_fault(source):
    with pytest.raises(ModelError, match=r"does not compile|characters \(at most"):
        ChatTemplate({"default": source}, {})


@pytest.mark.parametrize("words", ["5", "['a', messages]", "none"])
def test_any_value_may_be_raised(words):
    with pytest.raises(TemplateError) as caught:
        _render("{{ raise_exception(" + words + ") }}")
    assert isinstance(caught.value.message, str)


def test_an_endless_template_is_stopped(monkeypatch):
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)
    numbers = "range(100000)"
    source = "{% for i in N %}{% for j in N %}{% endfor %}{% endfor %}".replace("N", numbers)
    started = time.monotonic()
    with pytest.raises(TemplateError, match="took too long"):
        _render(source)
    assert time.monotonic() - started < 3
    time.sleep(0.3)  # and nothing strikes later
    assert _render("{{ messages | length }}") == "5"


@pytest.mark.parametrize(
    "expression",
    [
        "'a' * 10**10",
        "10 ** (10**9)",
        "[0] * 10**9 * 10",
        "10**9 * 'ab'",
        "'%9999999999d' % 1",
        "'%*d' % (9999999999, 1)",
        "2 ** 1000000",
    ],
)
def test_results_have_bounds(expression):
    with pytest.raises(TemplateError, match="too large"):  # and not while it compiles
        _render("{{ " + expression + " }}")


def test_ordinary_arithmetic_is_allowed():
    assert _render("{{ 2 * 3 }}{{ 2 ** 10 }}{{ '-' * 3 }}{{ 7 % 4 }}{{ '%05d' % 7 }}") == (
        "61024---300007"
    )
