"""The pages for users of Hugging Face models: their very snippets, on tiny models in folders of the names they use."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close

import relpos.hf

PAGES = Path(__file__).parents[2] / "docs/hugging-face"
VOCABULARY = 64
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
DEBERTA = hf.DebertaV2Config(
    **SMALL,
    intermediate_size=48,
    relative_attention=True,
    position_buckets=8,
    max_relative_positions=16,
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
    norm_rel_ebd="layer_norm",
    type_vocab_size=0,
)
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def tokenizer() -> hf.PreTrainedTokenizerFast:
    """Letters, so that every text has tokens."""
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "eos_token": "</s>",
    }
    letters = {letter: n for n, letter in enumerate([*special.values(), *"abcdefghijklmnopqrstuvwxyz."])}
    plain = Tokenizer(models.WordLevel(letters, unk_token=special["unk_token"]))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return hf.PreTrainedTokenizerFast(tokenizer_object=plain, **special)


def save(model: hf.PreTrainedModel, name: str) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():  # tables that start at zero would hide what they do
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(name)
    tokenizer().save_pretrained(name)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder where names of models are folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(page: str) -> dict[str, Any]:
    """All snippets of a page, one after the other; what they leave behind."""
    text = (PAGES / f"{page}.md").read_text()
    names: dict[str, Any] = {"__name__": "page"}
    for snippet in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        torch.manual_seed(1)
        exec(compile(snippet, f"{page}.md", "exec"), names)  # noqa: S102
    return names


def is_patched(model: torch.nn.Module) -> bool:
    return re.search(r"Attention +patched", str(relpos.hf.summary(model))) is not None


def test_sentence_transformers() -> None:
    save(hf.MPNetModel(hf.MPNetConfig(**SMALL, intermediate_size=48, max_position_embeddings=80)), "mpnet")
    parts = Transformer("mpnet", max_seq_length=70)
    whole = SentenceTransformer(modules=[parts, Pooling(parts.get_embedding_dimension())])
    whole.save("sentence-transformers/all-mpnet-base-v2")
    ranks = copy.deepcopy(DEBERTA)
    ranks.num_labels = 1
    save(hf.DebertaV2ForSequenceClassification(ranks), "mixedbread-ai/mxbai-rerank-base-v1")
    made = run("sentence-transformers")
    assert is_patched(made["model"])
    assert is_patched(made["ranker"])
    theirs = whole.encode(["Who wrote Faust?", "Faust is a tragedy in two parts by Johann Wolfgang von Goethe."])
    assert_close(made["embeddings"], theirs, rtol=0, atol=1e-5)
    assert made["scores"].shape == (2,)
    pairs = [("Who wrote Faust?", "Faust is by Goethe."), ("Who wrote Faust?", "Bread needs flour.")]
    assert_close(made["scores"], CrossEncoder("mixedbread-ai/mxbai-rerank-base-v1").predict(pairs), rtol=0, atol=1e-5)
    made["model"].max_seq_length = 500
    with pytest.raises(ValueError, match="the table of absolute positions ends at max_position_embeddings"):
        made["model"].encode("order matters " * 50)


def test_zero_shot() -> None:
    DEBERTA.label2id, DEBERTA.id2label = {"entailment": 0, "not": 1}, {0: "entailment", 1: "not"}
    save(hf.DebertaV2ForSequenceClassification(DEBERTA), "MoritzLaurer/deberta-v3-base-zeroshot-v2.0")
    save(hf.DebertaV2Model(DEBERTA), "microsoft/deberta-v3-base")
    made = run("zero-shot")
    assert is_patched(made["classifier"].model)
    ours = made["result"]
    relpos.hf.restore(made["classifier"].model)
    theirs = made["classifier"](ours["sequence"], candidate_labels=["computing", "cooking", "law"])
    assert ours["labels"] == theirs["labels"]
    assert_close(ours["scores"], theirs["scores"], rtol=0, atol=1e-5)
    given = torch.randint(VOCABULARY, (2, 30)), torch.ones(2, 30, dtype=torch.int64)
    with torch.no_grad():
        tags = made["tagger"](*given)
        assert is_patched(made["tagger"])
        assert_close(tags, relpos.hf.restore(made["tagger"])(*given), rtol=0, atol=1e-5)


def test_long_t5() -> None:
    save(hf.T5EncoderModel(hf.T5Config(**T5)), "google/flan-t5-base")
    local = hf.LongT5Config(**T5, encoder_attention_type="local", local_radius=5)
    save(hf.LongT5EncoderModel(local), "google/long-t5-local-base")
    made = run("long-t5")
    given = made["tokenizer"](made["document"], return_tensors="pt")
    assert given["input_ids"].shape[1] > 4000
    assert is_patched(made["encoder"])
    with torch.no_grad():
        theirs = relpos.hf.restore(made["encoder"])(**given).last_hidden_state
        assert_close(made["states"], theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
        ids = torch.randint(VOCABULARY, (1, 50))
        assert is_patched(made["local"])
        ours = made["local"](ids).last_hidden_state
        theirs = relpos.hf.restore(made["local"])(ids).last_hidden_state
        assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_alibi_decoders() -> None:
    save(
        hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
        "bigscience/bloom-560m",
    )
    mpt = hf.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=16)
    save(hf.MptForCausalLM(mpt), "mosaicml/mpt-7b")
    made = run("alibi-decoders")
    assert all(is_patched(made[name]) for name in ("model", "exact", "mpt"))
    assert made["exact"].dtype == torch.bfloat16
    model, prompts = made["model"], made["prompts"]
    shown = prompts["attention_mask"].bool()
    assert not shown.all()
    with torch.no_grad():
        ours = model(**prompts).logits[shown]
        theirs = relpos.hf.restore(model)(**prompts).logits[shown]
    assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    assert torch.equal(made["tokens"], model.generate(**prompts, max_new_tokens=8, do_sample=False))
    assert made["logits"].shape == (1, 1, VOCABULARY)
    with pytest.raises(RuntimeError):
        relpos.hf.restore(made["mpt"])(made["beyond"])
