import joblib
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from networks import votes
from smoothcert import models
from smoothcert.errors import ModelError


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(max_iter=200), RandomForestClassifier(20, random_state=0), SVC(gamma=0.05)],
    ids=lambda one: type(one).__name__,
)
def test_an_estimator_certifies_by_its_own_answers(digits, inputs, estimator):
    training, test = digits
    estimator.fit(training.inputs.reshape(-1, 64) / 255, training.labels)
    loaded = models.load(estimator)
    rows = torch.from_numpy(test.inputs[:200]).float() / 255
    answers = loaded(rows)
    labels = answers if answers.ndim == 1 else answers.argmax(1)
    np.testing.assert_array_equal(labels, estimator.predict(rows.flatten(1)))
    assert (loaded.num_classes, loaded.classes) == (10, tuple("0123456789"))
    assert (votes(loaded, inputs).sum(axis=1) == 2_000).all()


def test_classes_of_an_estimator_are_numbered_in_their_order(digits):
    training, _ = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    estimator = SVC(gamma=0.05).fit(training.inputs.reshape(-1, 64) / 255, names[training.labels])
    loaded = models.load(estimator)
    rows = torch.from_numpy(training.inputs[:50]).float() / 255
    assert [loaded.classes[label] for label in loaded(rows)] == estimator.predict(rows.flatten(1)).tolist()


def test_a_joblib_file_needs_the_flag(digits, tmp_path):
    training, _ = digits
    estimator = LogisticRegression(max_iter=200).fit(training.inputs.reshape(-1, 64) / 255, training.labels)
    joblib.dump(estimator, tmp_path / "model.joblib")
    with pytest.raises(ModelError, match="--unsafe-load"):
        models.load(tmp_path / "model.joblib")
    loaded = models.load(tmp_path / "model.joblib", unsafe=True)
    assert loaded.weights_hash.startswith("sha256:")
    assert loaded(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_an_unfitted_estimator_is_refused():
    with pytest.raises(ModelError, match="fitted"):
        models.load(LogisticRegression())
