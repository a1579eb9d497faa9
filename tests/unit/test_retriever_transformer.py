"""Folders of sentence-transformers: their pooling, their prefixes, in an index of the retriever."""

import json
import shutil

import numpy as np
import pytest
import torch
from retrievers import WORDS, corpus_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from sentence_transformers.sentence_transformer.modules import Transformer as Module
from transformers import BertConfig, BertModel, BertTokenizerFast

from rft.retriever.engine import Options, open_engine
from rft.retriever.transformer import CONFIG, Transformer


def ignored(*_: object) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of two layers with random weights, mean pooling, vectors of length 1; no prompts."""
    place = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", "mark", "title", *WORDS]
    (place / "vocab.txt").write_text("\n".join([*vocabulary, *"0123456789", *(f"##{n}" for n in range(10))]))
    tokenizer = BertTokenizerFast(str(place / "vocab.txt"))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    module = Module(str(place / "bert"), max_seq_length=64)
    model = SentenceTransformer(modules=[module, Pooling(32, "mean"), Normalize()], device="cpu")
    model.save(str(place / "tiny"))
    return place / "tiny"


@pytest.fixture
def prompted(folder, tmp_path):
    """The same with prompts of its own, one of them used by default."""
    copy = tmp_path / "prompted"
    shutil.copytree(folder, copy)
    config = json.loads((copy / CONFIG).read_text())
    config |= {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"}
    (copy / CONFIG).write_text(json.dumps(config))
    return copy


def by_hand(folder, texts: list[str]) -> np.ndarray:
    """Mean over the tokens of a text, divided by its length."""
    model, tokenizer = BertModel.from_pretrained(folder), BertTokenizerFast.from_pretrained(folder)
    found = []
    with torch.inference_mode():
        for text in texts:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            found.append((hidden / hidden.norm()).numpy())
    return np.stack(found)


def test_prefix_mean_pooling_and_length(folder):
    encoder = Transformer(folder, "query: ", "passage: ")
    texts = ["baran dosel", "kitok", "luvim meran 12"]
    assert np.allclose(encoder.queries(texts), by_hand(folder, ["query: " + each for each in texts]), atol=1e-5)
    assert np.allclose(encoder.passages(texts), by_hand(folder, ["passage: " + each for each in texts]), atol=1e-5)
    assert np.allclose(Transformer(folder).queries(texts), by_hand(folder, texts), atol=1e-5)


def test_a_folders_own_prompts_and_options_before_them(folder, prompted):
    texts = ["baran dosel", "\ud800 kitok"]
    own = Transformer(prompted)
    assert (own.query_prefix, own.passage_prefix) == ("query: ", "passage: ")
    plain = ["query: baran dosel", "query: ? kitok"]
    assert np.allclose(own.queries(texts), by_hand(folder, plain), atol=1e-5)
    other = Transformer(prompted, "", "title ")
    assert np.allclose(other.queries(texts[:1]), by_hand(folder, texts[:1]), atol=1e-5)
    assert other.identity["prefixes"] == ["", "title "]


NAMED = ["e5-base-v2", "multilingual-e5-small", "E5_large", "models--intfloat--e5-base-v2/snapshots/f52bf8ec"]


@pytest.mark.parametrize("name", NAMED)
def test_an_e5_has_its_prefixes(folder, tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).symlink_to(folder)
    encoder = Transformer(tmp_path / name)
    assert (encoder.query_prefix, encoder.passage_prefix) == ("query: ", "passage: ")
    assert encoder.identity["prefixes"] == ["query: ", "passage: "]
    assert Transformer(tmp_path / name, "", "").identity["prefixes"] == ["", ""]


@pytest.mark.parametrize("name", ["e5-mistral-7b-instruct", "multilingual-e5-large-instruct"])
def test_an_e5_with_instructions_is_refused_without_prefixes(folder, tmp_path, name):
    (tmp_path / name).symlink_to(folder)
    with pytest.raises(ValueError, match="--query-prefix TEXT --passage-prefix TEXT"):
        Transformer(tmp_path / name)
    assert Transformer(tmp_path / name, "Query: ", "").query_prefix == "Query: "


def test_an_index_of_it(folder, prompted, tmp_path):
    file = corpus_of(tmp_path, 40)
    options = Options(file, "dense", str(prompted), "torch", tmp_path / "index")
    engine = open_engine(options, ignored)
    texts = engine.corpus.texts(0, len(engine.corpus))
    scores = by_hand(folder, ["query: mark 7"]) @ by_hand(folder, [f"passage: {each}" for each in texts[:40]]).T
    assert engine.index == "dense/torch" and engine.encoder == "prompted"
    found = engine.search(["mark 7"], len(texts))[0]
    ours = {hit.document["id"]: hit.score for hit in found}
    assert np.allclose([ours[f"p{n}"] for n in range(40)], scores[0], atol=1e-4)
    flat = open_engine(Options(file, "dense", str(prompted), "flat", tmp_path / "index"), ignored)
    assert [hit.document["id"] for hit in flat.search(["mark 7"], 5)[0]] == [hit.document["id"] for hit in found[:5]]
    with pytest.raises(ValueError, match=r"encoder: found .*'prompted'.* wanted .*'tiny'"):
        open_engine(Options(file, "dense", str(folder), "flat", tmp_path / "index"), ignored)
    with pytest.raises(ValueError, match="'prefixes'"):
        open_engine(Options(file, "dense", str(prompted), "flat", tmp_path / "index", "other: "), ignored)
