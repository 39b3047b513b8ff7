"""Ops of TensorFlow Text in a tf.data pipeline: tokenizers, masking for a language model, padding, ROUGE."""

import healthy
import keras
import tensorflow as tf
import tensorflow_text as tf_text

healthy.start()
words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", "##s", "a", "dog", "ran"]
table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64)), num_oov_buckets=1
)
tokenizer = tf_text.BertTokenizer(table, lower_case=True)
selector = tf_text.RandomItemSelector(2, 0.3, unselectable_ids=[3, 4], shuffle_fn=lambda x: x)
chooser = tf_text.MaskValuesChooser(len(words), mask_token=2, mask_token_rate=1.0, random_token_rate=0.0)


def prepare(sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    tokens = tokenizer.tokenize(sentences).merge_dims(1, 2)
    combined, _ = tf_text.combine_segments([tokens], 3, 4)
    masked, _, _ = tf_text.mask_language_model(combined, selector, chooser)
    ids, mask = tf_text.pad_model_inputs(masked, 10)
    return tf.reshape(ids, [-1, 10]), tf.cast(mask, tf.float32)


sentences = tf.constant(["The cats sat on the mat", "A dog ran", "the mats", "On a cat the dog sat"])
dataset = tf.data.Dataset.from_tensor_slices(sentences).batch(2).map(prepare)
embedding = keras.layers.Embedding(len(words), 6)
head = keras.layers.Dense(1)
total = 0.0
for ids, mask in dataset:
    embedded = embedding(ids) * mask[..., tf.newaxis]
    total += float(tf.reduce_sum(head(tf.reduce_sum(embedded, 1) / tf.reduce_sum(mask, 1, keepdims=True))))
split = tf_text.WhitespaceTokenizer().tokenize(sentences)
rouge = tf_text.metrics.rouge_l(split, split[::-1])
healthy.report(
    total=total,
    rouge=rouge.f_measure,
    ngrams=tf_text.ngrams(split, 2, reduction_type=tf_text.Reduction.STRING_JOIN).row_lengths(),
)
