"""A classifier whose training ends in NaN, and the command that finds out why.

It classifies scikit-learn's handwritten digits (8x8 pixels, ten classes) with a two-layer network and makes a common
mistake: `model` ends in a softmax, and `loss` takes the logarithm of its output. Once the network is confident, the
softmax of an unlikely class is too small for a float32 and becomes 0. Then log(0) is -infinity, 0 * -infinity is NaN,
and one step later every weight is NaN. All you see is an accuracy that stays at chance level.

    python examples/demo.py              # trains to NaN, names the op, its input and the line, and writes a report
    python examples/demo.py --fix        # the same model with the loss computed from logits: nothing to find
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # must be set before TensorFlow is imported

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdbg_arrow

NUM_CLASSES = 10
NUM_PIXELS = 64
NUM_HIDDEN = 256
NUM_TRAIN = 1408
BATCH_SIZE = 64
LEARNING_RATE = 0.015
SEED = 1


@dataclass(frozen=True)
class Digits:
    """The data: images as rows of 64 pixels from 0 to 16 (float32), and one-hot labels (float32)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_data() -> Digits:
    """Returns the digits in a fixed random order, the first NUM_TRAIN of them for training."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = digits.data[order].astype(np.float32)
    labels = np.eye(NUM_CLASSES, dtype=np.float32)[digits.target[order]]
    return Digits(images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:])


class Dense(tf.Module):
    """A fully connected layer."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.kernel = tf.Variable(keras.random.normal((num_inputs, num_outputs), stddev=0.1), name="kernel")
        self.bias = tf.Variable(tf.zeros(num_outputs), name="bias")

    @tf.function
    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the layer's outputs, of shape [batch, num_outputs]."""
        return tf.matmul(inputs, self.kernel) + self.bias


class Classifier(tf.Module):
    """The network. Its outputs are probabilities (with the bug) or logits (fixed)."""

    def __init__(self, *, fix: bool) -> None:
        super().__init__()
        self.hidden = Dense(NUM_PIXELS, NUM_HIDDEN)
        self.output = Dense(NUM_HIDDEN, NUM_CLASSES)
        self.fix = fix

    @tf.function
    def model(self, images: tf.Tensor) -> tf.Tensor:
        """Returns one row of NUM_CLASSES numbers for each image."""
        logits = self.output(tf.nn.relu(self.hidden(images)))
        return logits if self.fix else tf.nn.softmax(logits)


@tf.function
def loss(probs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy of probabilities. This function contains the bug."""
    log_probs = tf.math.log(probs)
    return -tf.reduce_mean(tf.reduce_sum(labels * log_probs, axis=1))


@tf.function
def loss_of_logits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy of logits. It combines the logarithm and the softmax, so it cannot underflow."""
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits))


def accuracy(classifier: Classifier, digits: Digits) -> float:
    """Returns the share of the test images that get the right label."""
    predictions = classifier.model(tf.constant(digits.test_images)).numpy()
    return float(np.mean(predictions.argmax(axis=1) == digits.test_labels.argmax(axis=1)))


def train(digits: Digits, *, fix: bool, num_steps: int) -> float:
    """Trains a classifier and prints its progress.

    Args:
        digits: The data.
        fix: Whether to train the fixed model.
        num_steps: Number of batches.

    Returns:
        The accuracy on the test images at the end.
    """
    keras.utils.set_random_seed(SEED)
    classifier = Classifier(fix=fix)
    loss_function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = loss_of_logits if fix else loss
    variables = classifier.trainable_variables
    optimizer = keras.optimizers.Adam(LEARNING_RATE)

    for step in range(num_steps):
        tfdbg_arrow.mark(step=step)
        start = step * BATCH_SIZE % NUM_TRAIN
        images = tf.constant(digits.train_images[start : start + BATCH_SIZE])
        labels = tf.constant(digits.train_labels[start : start + BATCH_SIZE])
        with tf.GradientTape() as tape:
            batch_loss = loss_function(classifier.model(images), labels)
        gradients = tape.gradient(batch_loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if step < 5 or step % 25 == 0 or step == num_steps - 1:
            print(f"step {step:4}   loss {float(batch_loss):8.4f}   accuracy {accuracy(classifier, digits):6.1%}")
    return accuracy(classifier, digits)


def main() -> int:
    """Runs the demo and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logdir", help="where to record (default: a new temporary directory)")
    parser.add_argument("--fix", action="store_true", help="train the same model with the bug fixed")
    parser.add_argument("--steps", type=int, default=200, help="number of training steps (default: %(default)s)")
    arguments = parser.parse_args()
    logdir = arguments.logdir or tempfile.mkdtemp(prefix="tfdbg_arrow_demo_")

    print(f"Training with tfdbg_arrow recording to {logdir}")
    digits = load_data()
    with tfdbg_arrow.capture(logdir):
        final_accuracy = train(digits, fix=arguments.fix, num_steps=arguments.steps)
    print(f"\nAccuracy at the end: {final_accuracy:.1%} (chance is {1 / NUM_CLASSES:.0%})")

    print(f"\n$ tfdbg-arrow first-nonfinite {logdir}", flush=True)
    command = [sys.executable, "-m", "tfdbg_arrow", "first-nonfinite", logdir]
    exit_code = subprocess.run(command, check=False).returncode
    # Exit code 1 means that a bad value was found, which is the purpose of the demo.
    if exit_code not in (0, 1):
        return exit_code

    if importlib.util.find_spec("jinja2") is None:
        print("\nTo get the same as an HTML report: pip install '.[viewer]'")
        return 0
    page = f"{logdir.rstrip('/')}.html"
    print(f"\n$ tfdbg-arrow report {logdir} -o {page}", flush=True)
    return subprocess.run([sys.executable, "-m", "tfdbg_arrow", "report", logdir, "-o", page], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
