"""A patched model is the same model: logits, gradients, generated tokens, probabilities; every family alike."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import allocations
from torch import Tensor, nn
from zoo import BOTH, DECODER, TINY, Tiny, inputs

import relpos.hf

pytest.importorskip("transformers")

EVERY = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY.keys())
GENERATING = pytest.mark.parametrize(
    "tiny",
    [one for one in TINY.values() if one.kind != "encoder"],
    ids=[n for n, t in TINY.items() if t.kind != "encoder"],
)
PADDING = pytest.mark.parametrize("padding", [None, "left", "right"])


@pytest.fixture(autouse=True)
def _nondeterministic() -> None:
    """Transformers' own gathers have no deterministic backward; memory stays full of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)


def eager(model: Any) -> Any:
    """The model with the attention that transformers wrote out."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    return model


def real(tiny: Tiny, given: dict[str, Tensor]) -> Tensor:
    """Which rows of the logits are those of tokens, `[B, T]`."""
    if tiny.kind == BOTH:
        return torch.ones_like(given["decoder_input_ids"], dtype=torch.bool)
    return given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()


def logits(model: Any, tiny: Tiny, given: dict[str, Tensor]) -> Tensor:
    """Those of all tokens, `[tokens, V]`."""
    return model(**given).logits[real(tiny, given)]


def lengths(tiny: Tiny) -> list[int]:
    return [n for n in (1, 7, 70) if tiny.longest is None or n <= tiny.longest]


def near(ours: Tensor, theirs: Tensor, tolerance: float, what: str = "") -> None:
    """Apart by no more than `tolerance` of the largest number (or of 1)."""
    bound = tolerance * max(1.0, float(theirs.abs().max()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound, msg=lambda text: f"{what} {text}")


@EVERY
@PADDING
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_logits(tiny: Tiny, batch: int, padding: str | None) -> None:
    model = eager(tiny.model())
    for length in lengths(tiny):
        given = inputs(tiny, batch, length, padding)
        theirs = logits(model, tiny, given)
        ours = logits(relpos.hf.patch(model), tiny, given)
        assert relpos.hf.summary(model).patched == tiny.patched
        near(ours, theirs, 1e-5, f"length {length}")
        relpos.hf.restore(model)


@EVERY
@pytest.mark.parametrize("padding", [None, "right"])
def test_gradients(tiny: Tiny, padding: str | None) -> None:
    model = eager(tiny.model())
    given = inputs(tiny, 2, lengths(tiny)[-1], padding)
    want = gradients(model, tiny, given)
    have = gradients(relpos.hf.patch(model), tiny, given)
    same_gradients(have, want)


def same_gradients(have: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """To 1e-4 of each gradient's largest number, or to 1e-7 of the largest of all."""
    assert have.keys() == want.keys()
    largest = max(float(gradient.abs().max()) for gradient in want.values())
    for name, gradient in want.items():
        bound = 1e-4 * max(float(gradient.abs().max()), 1e-3 * largest)
        torch.testing.assert_close(
            have[name], gradient, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )


def gradients(model: Any, tiny: Tiny, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The loss (as "loss") and its gradient for every parameter that has one."""
    model.zero_grad()
    scores = logits(model, tiny, given)
    labels = torch.arange(len(scores)) % scores.shape[-1]
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@EVERY
def test_gradient_checkpointing(tiny: Tiny) -> None:
    model = relpos.hf.patch(tiny.model())
    if not getattr(model, "supports_gradient_checkpointing", False):
        pytest.skip("transformers cannot checkpoint it")
    given = inputs(tiny, 2, 7)
    want = gradients(model.train(), tiny, given)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    have = gradients(model, tiny, given)
    for name, gradient in want.items():
        near(have[name], gradient, 1e-6, name)


@GENERATING
@PADDING
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_greedy_tokens(tiny: Tiny, padding: str | None, cache: str | None) -> None:
    if padding == "right" and tiny.kind == DECODER:
        pytest.skip("a decoder continues its prompt: padding stands on the left")
    if cache == "static" and type(tiny.model()).__name__.startswith("Falcon"):
        pytest.skip("transformers fail: test_alibi_families.py compares with the dynamic cache")
    model = eager(tiny.model())
    given = inputs(tiny, 3, 11, padding)
    given.pop("decoder_input_ids", None)
    how = {"max_new_tokens": 12, "do_sample": False, "use_cache": cache is not None, "disable_compile": True}
    how |= {"output_logits": True, "return_dict_in_generate": True}
    if cache is not None:
        how["cache_implementation"] = cache
    theirs = model.generate(**given, **how)
    ours = relpos.hf.patch(model).generate(**given, **how)
    assert torch.equal(ours.sequences, theirs.sequences)
    near(torch.stack(ours.logits), torch.stack(theirs.logits), 1e-5)


@EVERY
@pytest.mark.parametrize("padding", ["left", "right"])
@torch.no_grad()
def test_a_padded_batch_equals_each_text_alone(tiny: Tiny, padding: str) -> None:
    """C12, M7: a batch worked for one text only."""
    model = relpos.hf.patch(tiny.model())
    given = inputs(tiny, 2, 12, padding)
    together = model(**given).logits
    for row in range(2):
        kept = given["attention_mask"][row].bool()
        alone = {name: x[row : row + 1] for name, x in given.items() if name != "attention_mask"}
        alone["input_ids"] = alone["input_ids"][:, kept]
        want = model(**alone).logits[0]
        near(together[row] if tiny.kind == BOTH else together[row, kept], want, 1e-5, f"row {row}")


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_low_precision_is_no_worse_than_twice_eagers(tiny: Tiny, dtype: torch.dtype) -> None:
    model = eager(tiny.model())
    given = inputs(tiny, 2, lengths(tiny)[-1], "right")
    exact = logits(model, tiny, given)
    model.to(dtype)
    theirs = logits(model, tiny, given).float()
    ours = logits(relpos.hf.patch(model), tiny, given).float()
    assert not ours.isnan().any()
    sound, first = theirs.isfinite(), int(real(tiny, given)[0].sum())
    is_longt5 = model.config.model_type == "longt5"  # whose float16 is NaN for texts with padding
    assert sound.all() or (dtype is torch.float16 and is_longt5 and sound[:first].all())
    mine, other = ((x - exact)[sound].abs() for x in (ours, theirs))
    assert mine.pow(2).mean().sqrt() <= 2 * other.pow(2).mean().sqrt()
    assert mine.max() <= 2 * other.max()


@EVERY
@torch.no_grad()
def test_probabilities(tiny: Tiny) -> None:
    model = eager(tiny.model())
    given = inputs(tiny, 2, 9, "right")
    theirs = model(**given, output_attentions=True)
    ours = relpos.hf.patch(model)(**given, output_attentions=True)
    shown = given["attention_mask"].bool()
    names = [name for name in theirs if name.endswith("attentions")]
    assert names
    for name in names:
        assert len(ours[name]) == len(theirs[name]) > 0
        for mine, other in zip(ours[name], theirs[name], strict=True):
            if name in ("attentions", "encoder_attentions"):
                mine, other = (by_query(x, shown) for x in (mine, other))
            near(mine, other, 1e-5, name)


def by_query(weights: Tensor, shown: Tensor) -> Tensor:
    """The probabilities of all tokens, `[tokens, H, keys]`, also where they stand in blocks of queries."""
    if weights.dim() == 4:
        return weights.transpose(1, 2)[shown]
    return weights.transpose(2, 3).flatten(1, 2)[:, : shown.shape[1]][shown]


@EVERY
@torch.no_grad()
def test_weights_names_files_and_the_way_back(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny.model()
    given = inputs(tiny, 2, 9, "right")
    before, kinds = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    config, output = model.config.to_json_string(), model(**given).logits
    assert relpos.hf.patch(model) is model
    patched = model(**given).logits
    assert [*model.state_dict()] == [*before]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert model.config.to_json_string() == config
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    near(again(**given).logits[real(tiny, given)], output[real(tiny, given)], 1e-6)
    assert relpos.hf.summary(again).patched == 0
    assert torch.equal(relpos.hf.patch(again)(**given).logits, patched)
    relpos.hf.restore(model)
    assert [type(module) for module in model.modules()] == kinds
    assert not any("relpos" in name for module in model.modules() for name in vars(module))
    assert torch.equal(model(**given).logits, output)


@EVERY
@torch.no_grad()
def test_a_copy_has_weights_of_its_own(tiny: Tiny, tmp_path: Path) -> None:
    model = relpos.hf.patch(tiny.model())
    given = inputs(tiny, 1, 9)
    output = model(**given).logits
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    for parameter in model.parameters():
        parameter.zero_()
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (twin, loaded):
        assert relpos.hf.summary(other).patched == tiny.patched
        assert torch.equal(other(**given).logits, output)


@EVERY
@torch.no_grad()
def test_a_new_model_from_a_patched_ones_configuration(tiny: Tiny, tmp_path: Path) -> None:
    """Computes as transformers wrote it where it is told how; is refused, never wrong, where the masks are relpos's."""
    model, given = tiny.model(), inputs(tiny, 2, 9, "right")
    name, shown = model.config._attn_implementation, real(tiny, given)
    want = model(**given).logits[shown]
    model.save_pretrained(tmp_path)
    patched = relpos.hf.patch(copy.deepcopy(model))
    config = patched.config
    if config._attn_implementation == "relpos":
        for build in (type(model), type(model)._from_config):  # what AutoModel.from_config calls
            with pytest.raises(ValueError, match='attn_implementation="relpos"` is not supported'):
                build(copy.deepcopy(config))
        told = {"attn_implementation": name}
    else:
        told = {}
    new = [type(model)._from_config(copy.deepcopy(config), **told).eval()]
    new[0].load_state_dict(model.state_dict())
    new.append(type(model).from_pretrained(tmp_path, config=copy.deepcopy(config), **told).eval())
    new.append(type(model)(copy.deepcopy(relpos.hf.restore(copy.deepcopy(patched)).config)).eval())
    new[2].load_state_dict(model.state_dict())
    for other in new:
        assert relpos.hf.summary(other).patched == 0
        assert torch.equal(other(**given).logits[shown], want)
    shared = type(model)._from_config(config, **told).eval()  # takes the configuration of the patched one over
    shared.load_state_dict(model.state_dict())
    assert torch.equal(shared(**given).logits[shown], want)
    for module in patched.modules():
        module._forward_pre_hooks.clear()  # Falcon's in the zoo is for transformers' written-out attention
    near(patched(**given).logits[shown], want, 1e-5)


@EVERY
def test_no_matrix_of_pairs_anywhere(tiny: Tiny) -> None:
    """Not a bias, not a mask, not an index: no allocation has a byte for every pair of tokens."""
    if tiny.longest is not None:
        pytest.skip("the model ends before that would show")
    model, length = relpos.hf.patch(tiny.model()), 5000
    given = inputs(tiny, 2, length, "right")
    if tiny.kind == BOTH:
        given["decoder_input_ids"] = given["input_ids"]
    with torch.no_grad():
        assert max(allocations(lambda: model(**given))) < length**2


PREAMBLE = """
import sys, warnings
import torch
sys.path[:0] = sys.argv[1:]
from zoo import TINY, inputs
import relpos.hf
torch.set_num_threads(1)
warnings.simplefilter("ignore")
"""

ONE_GRAPH = """
for name, tiny in TINY.items():
    if "," in name:
        continue
    torch.compiler.reset()
    model = relpos.hf.patch(tiny.model())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    given = inputs(tiny, 2, 9, "right")
    shown = given.get("decoder_input_ids", given["attention_mask"]) > 0
    with torch.no_grad():
        ours, theirs = (run(**given).logits[shown] for run in (compiled, model))
    torch.testing.assert_close(ours, theirs, msg=lambda text: f"{name}: {text}")
    print(name)
"""


def printed(script: str) -> list[str]:
    """The lines that a script prints in a process without run-time checks of shapes: those are not for a graph."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", PREAMBLE + script, str(here), str(here.parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.split("\n")[:-1]


def test_one_graph() -> None:
    """One model of each kind."""
    assert printed(ONE_GRAPH) == [name for name in TINY if "," not in name]


DECODE = """
import transformers as hf
from zoo import BOTH, DECODER
for name, tiny in TINY.items():
    if tiny.kind not in (BOTH, DECODER) or "," in name:
        continue
    torch.compiler.reset()
    graphs = []
    model, given = tiny.model(), inputs(tiny, 2, 9, "left")
    ids, mask = given["input_ids"], given["attention_mask"]
    with torch.no_grad():
        if tiny.kind == BOTH:
            said = torch.randint(3, 61, (2, 9))
            want = model(**given | {"decoder_input_ids": said}).logits
        else:
            said, want = ids, model(**given).logits
        relpos.hf.patch(model)
        def backend(graph, example):
            graphs.append(graph)
            return graph.forward
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        config = model.config.get_text_config(decoder=True)
        cache = hf.StaticCache(config=config, max_cache_len=12)
        if tiny.kind == BOTH:
            cache = hf.EncoderDecoderCache(cache, hf.StaticCache(config=config, max_cache_len=9))
            encoded = model.encoder(input_ids=ids, attention_mask=mask)
        def run(what, start, stop):
            if tiny.kind == BOTH:
                texts = {"encoder_outputs": encoded, "attention_mask": mask, "decoder_input_ids": said[:, start:stop]}
            else:  # a mask as long as the cache, as generate() gives it: one of a growing length would be another shape
                seen = torch.nn.functional.pad(mask, (0, 3))
                texts = {"input_ids": said[:, start:stop], "attention_mask": seen}
            return what(**texts, cache=cache, use_cache=True).logits
        found = [run(model, 0, 4)] + [run(compiled, step, step + 1) for step in range(4, 9)]
    shown = torch.ones(2, 9, dtype=torch.bool) if tiny.kind == BOTH else mask.bool()
    torch.testing.assert_close(torch.cat(found, 1)[shown], want[shown], rtol=0, atol=2e-5)
    print(name, len(graphs))
"""


def test_k13_a_decode_step_is_one_graph() -> None:
    """The bias of a static cache grew with the steps: 5 steps, recorded once, equal one pass of transformers."""
    decoders = [name for name, tiny in TINY.items() if tiny.kind != "encoder" and "," not in name]
    assert printed(DECODE) == [f"{name} 1" for name in decoders]
