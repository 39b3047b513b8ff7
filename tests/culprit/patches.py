"""The repairs of corpus programs that are written by hand because they change more than a single expression."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """A repair that consists of changes to the text of a program.

    Attributes:
        repair: The beginning of the repair that the changes apply. If the answer names another repair, the patch is not
            applied.
        changes: Pairs of a text and its replacement. The text occurs once in the program. If the program does not
            contain the text, the text occurs once in the program's file.
    """

    repair: str
    changes: tuple[tuple[str, str], ...]


_CHECK_DATA = "Check where the program got it"
_CHECK_SOURCE = "Check the source of the data"
_CHECK_PYTHON = "Check the Python function"
_DIVIDE = "Use tf.math.divide_no_nan"
_DOUBLE_WHERE = "Put tf.where around the"
_EPSILON = "Keep the argument above 0 with an epsilon"
_EPSILON_16 = "Add a larger epsilon, such as 1e-3"
_FINITE = "Use a large finite number"
_JITTER = "Add jitter"
_LOGARITHMS = "Add the logarithms of the factors"
_OPTIMIZER = "Give the optimizer an epsilon"
_ROOT = "Before the root, add an epsilon"
_ROW_OF_MASK = "Mask with a large negative number"
_SCALE = "Scale the operands (data or weights) down, or compute in a wider dtype"
_SOFTMAX = "Use tf.nn.softmax"
_STATE = "Keep the state of the loop from growing"
_VARIABLE = "Give the variable a value that is not 0"

PATCHES: dict[str, Patch] = {
    "beside.gradient_penalty_beside_loss_scaling": Patch(
        "Scale the inputs and the loss down", (("batches[2, 3] = 20000.0", "batches[2, 3] = 2.0"),)
    ),
    "beside.infinite_diagonal_beside_a_harmless_division": Patch(
        "If the program multiplies a mask by an infinity", (("np.inf * tf.eye(5)", "1e9 * tf.eye(5)"),)
    ),
    "beside.infinite_number_in_a_checked_mean": Patch(
        _CHECK_DATA, (("reduce_mean(features)", "reduce_mean(np.nan_to_num(features, posinf=0.0))"),)
    ),
    "data.argument_of_a_function": Patch(_CHECK_DATA, (("np.array([np.nan, 1.0]", "np.array([0.0, 1.0]"),)),
    "data.array_with_a_missing_value": Patch(
        _CHECK_DATA, (("    _regression().fit(features", "    _regression().fit(np.nan_to_num(features)"),)
    ),
    "data.batch_from_numpy_in_a_loop": Patch(
        _CHECK_DATA, (("tf.constant(batch)", "tf.constant(np.nan_to_num(batch))"),)
    ),
    "data.bytes_read_in_the_wrong_byte_order": Patch(
        "Check that the bytes",
        (("decode_raw(record, tf.float32)", "decode_raw(record, tf.float32, little_endian=False)"),),
    ),
    "data.bytes_read_with_the_wrong_type": Patch("Check that the bytes", (("0x3F800000, -1", "0x3F800000, 0"),)),
    "data.padding_of_nan_times_0": Patch(
        "If the product is meant to mask",
        (("x * tf.cast(~tf.math.is_nan(x), tf.float32)", "tf.where(tf.math.is_nan(x), 0.0, x)"),),
    ),
    "data.constant_made_by_numpy": Patch("Check the constant", (("[0.5, 0.5, 0.0]", "[0.5, 0.5, 1e-6]"),)),
    "data.csv_cell_that_says_nan": Patch(_CHECK_SOURCE, (('"4,nan,6"', '"4,5,6"'),)),
    "data.csv_field_that_is_missing": Patch(
        "Leave out the records with missing fields", (('"1,2,3", "4,,6"', '"1,2,3", "4,5,6"'),)
    ),
    "data.csv_record_with_an_infinity": Patch(_CHECK_SOURCE, (('"0.5,inf"', '"0.5,1.5"'),)),
    "data.example_that_holds_a_nan": Patch(_CHECK_SOURCE, (('float("nan")', "2.0"),)),
    "data.dataset_of_keras_with_an_infinite_weight": Patch(
        "Check what __getitem__ of the PyDataset returns", (("[0.5, 0.25, 0.0, 0.5]", "[0.5, 0.25, 0.1, 0.5]"),)
    ),
    "data.feature_of_a_numpy_function": Patch(_CHECK_PYTHON, (("np.log(values)", "np.log(np.maximum(values, 1e-6))"),)),
    "data.feature_of_a_python_function": Patch(
        _CHECK_PYTHON, (("/ values.numpy()", "/ np.maximum(values.numpy(), 1e-6)"),)
    ),
    "data.generator_that_yields_nan": Patch(
        "Check what the generator yields",
        (("np.float32(count) / np.float32(count)", "np.float32(count) / np.maximum(count, 1e-6)"),),
    ),
    "data.infinite_rate_of_an_empty_history": Patch(_CHECK_DATA, (("losses.mean()", "max(losses.mean(), 1.0)"),)),
    "data.missing_pixels_in_a_pool": Patch(
        _CHECK_DATA, (("from_tensor_slices(images)", "from_tensor_slices(np.nan_to_num(images))"),)
    ),
    "data.missing_token": Patch(_CHECK_DATA, (("    model.fit(tokens", "    model.fit(np.nan_to_num(tokens)"),)),
    "data.raw_file_that_holds_an_infinity": Patch(_CHECK_SOURCE, (("[1.0, np.inf, 2.0]", "[1.0, 3.0, 2.0]"),)),
    "data.targets_with_an_infinity": Patch(
        _CHECK_DATA,
        (('np.ones((4, 2), "float32"), targets', 'np.ones((4, 2), "float32"), np.nan_to_num(targets, posinf=0)'),),
    ),
    "functions.division_of_sums_over_two_lines": Patch(
        _DIVIDE,
        (
            (
                "tf.reduce_sum(weights * liked)  # the sum\n            / tf.reduce_sum(liked)",
                "tf.math.divide_no_nan(tf.reduce_sum(weights * liked), tf.reduce_sum(liked))",
            ),
        ),
    ),
    "functions.error_after_the_update": Patch(
        "Give the variable a value above 0", (("tf.Variable(0.0)", "tf.Variable(1.0)"),)
    ),
    "functions.gradient_with_the_logarithm_of_a_constant": Patch(
        "Check the constants", (("tf.constant(0.0)", "tf.constant(1e-6)"),)
    ),
    "functions.jacobian_at_zero": Patch(_ROOT, (("tf.sqrt(x)", "tf.sqrt(x + 1e-6)"),)),
    "functions.logarithm_of_a_constant": Patch("Check the constants", (("tf.constant(0.0)", "tf.constant(1e-6)"),)),
    "functions.product_of_constants_that_overflows": Patch(
        "Use smaller constant factors", (("1e30 * 1e30", "1e15 * 1e15"),)
    ),
    "functions.reloaded_keras_model_predicts": Patch(
        "Keep the argument above 0, for example with tf.maximum(x",
        (("array([[1.0, -4.0]]", "array([[1.0, max(-4.0, 0.0)]]"),),
    ),
    "functions.saved_model_called_with_zero": Patch(
        _EPSILON, (("model(tf.constant([0.0, 1.0]))", "model(tf.constant([0.0, 1.0]) + 1e-6)"),)
    ),
    "functions.saved_model_in_a_training_step": Patch(
        _EPSILON, (("model(inputs * scale)", "model(inputs * scale + 1e-6)"),)
    ),
    "functions.session_with_an_optimizer_without_an_epsilon": Patch(_OPTIMIZER, (("epsilon=0.0", "epsilon=1e-7"),)),
    "functions.training_step_of_a_saved_model": Patch(
        "Use tf.nn.softplus in place of tf.nn.relu", (("tf.nn.relu(tf.matmul", "tf.nn.softplus(tf.matmul"),)
    ),
    "functions.vectorized_map_over_a_constant_image": Patch(
        _DIVIDE,
        (("centered / tf.math.reduce_std(image)", "tf.math.divide_no_nan(centered, tf.math.reduce_std(image))"),),
    ),
    "generative.density_of_a_posterior_whose_deviation_underflows": Patch(
        "Clip the argument of the exponential from below",
        (("tf.exp(log_deviation)", "tf.exp(tf.maximum(log_deviation, -22.0))"),),
    ),
    "generative.critic_loss_reported_only": Patch(
        "Use tf.math.log_sigmoid in place of the sigmoid and the logarithm",
        (
            ("tf.sigmoid(tf.constant([-120.0, 0.0, 1.0]))", "tf.constant([-120.0, 0.0, 1.0])"),
            ("tf.math.log(probs)", "tf.math.log_sigmoid(probs)"),
        ),
    ),
    "generative.flow_inverse_of_a_zero_scale": Patch(
        _VARIABLE, (("tf.Variable([1.0, 0.0])", "tf.Variable([1.0, 0.5])"),)
    ),
    "generative.saturated_discriminator": Patch(
        "Use tf.math.log_sigmoid(-x)",
        (('activation="sigmoid", ', ""), ("tf.math.log(1.0 - fake)", "tf.math.log_sigmoid(-fake)")),
    ),
    "keras_training.batch_normalisation_with_epsilon_zero": Patch(
        "Give the normalization an epsilon", (("epsilon=0.0", "epsilon=1e-3"),)
    ),
    "keras_training.checkpoint_that_holds_a_nan": Patch(
        "Restore an earlier checkpoint", (('[1.0, float("nan")]', "[1.0, 2.0]"),)
    ),
    "keras_training.clip_norm_that_is_infinite": Patch(
        _FINITE, (('[tape.gradient(loss, weight)], float("inf"))', "[tape.gradient(loss, weight)], 1e9)"),)
    ),
    "keras_training.cross_entropy_of_rows_of_zeros": Patch(
        "The loss divides the predictions by their sum",
        (('activation="relu", kernel_initializer="ones")', 'activation="softmax", kernel_initializer="ones")'),),
    ),
    "keras_training.decay_of_the_learning_rate_to_a_division_by_zero": Patch(
        "The division is the learning rate schedule's", (("decay_rate=-0.25", "decay_rate=0.25"),)
    ),
    "keras_training.deep_linear_network_explodes": Patch(_SCALE, (("Constant(1e5)", "Constant(1e-1)"),)),
    "keras_training.deviation_over_an_axis_of_one_element": Patch(
        "The divisor is computed with a root",
        (
            (
                "math.reduce_std(values, 1, keepdims=True)",
                "sqrt(tf.math.reduce_variance(values, 1, keepdims=True) + 1e-6)",
            ),
        ),
    ),
    "keras_training.learning_rate_far_too_large": Patch("Lower the learning rate", (("SGD(1e12)", "SGD(1e-2)"),)),
    "keras_training.learning_rate_far_too_large_in_a_loop": Patch("Lower the learning rate", (("1e12 *", "1e-2 *"),)),
    "keras_training.learning_rate_set_to_nan_by_a_callback": Patch(
        _CHECK_DATA, (("learning_rate.assign(rate)", "learning_rate.assign(np.nan_to_num(rate))"),)
    ),
    "keras_training.optimizer_with_epsilon_zero": Patch(_OPTIMIZER, (("epsilon=0.0", "epsilon=1e-7"),)),
    "keras_training.pretrained_weights_with_a_nan": Patch(
        _CHECK_DATA, (("set_weights([kernel,", "set_weights([np.nan_to_num(kernel),"),)
    ),
    "keras_training.softplus_by_hand_before_batch_normalization": Patch(
        "Use tf.nn.softplus(x)", (("tf.math.log(1.0 + tf.exp(x))", "tf.nn.softplus(x)"),)
    ),
    "keras_training.warmup_of_no_steps": Patch(
        "Check how the program sets the divisor", (("Warmup(0)", "Warmup(10)"),)
    ),
    "losses.binary_cross_entropy_by_hand": Patch(
        "Use tf.math.log_sigmoid(-x)",
        (
            ('_classifier(1, "sigmoid")', '_classifier(1, "linear")'),
            ("tf.math.log(y_pred + 1e-7)", "tf.math.log_sigmoid(y_pred)"),
            ("tf.math.log(1.0 - y_pred)", "tf.math.log_sigmoid(-y_pred)"),
        ),
    ),
    "losses.contrastive_loss_at_temperature_zero": Patch(
        _VARIABLE, (("tf.maximum(temperature - 0.25, 0.0)", "tf.maximum(temperature - 0.25, 0.01)"),)
    ),
    "losses.cross_entropy_by_hand": Patch(
        "Use tf.nn.log_softmax",
        (
            ('_classifier(3, "softmax")', '_classifier(3, "linear")'),
            ("tf.math.log(y_pred)", "tf.nn.log_softmax(y_pred)"),
        ),
    ),
    "losses.log_sum_exp_by_hand": Patch(
        "Use tf.reduce_logsumexp",
        (("tf.math.log(tf.reduce_sum(tf.exp(energies)))", "tf.reduce_logsumexp(energies)"),),
    ),
    "losses.perplexity_of_an_unseen_word": Patch(
        _LOGARITHMS,
        (
            ("    likelihood = tf.reduce_prod(probs)\n", ""),
            ("tf.math.log(likelihood)", "tf.reduce_sum(tf.math.log(probs))"),
        ),
    ),
    "losses.ranking_with_a_sigmoid_by_hand": Patch(
        "Use tf.nn.sigmoid(x)",
        (
            (
                "1.0 / (1.0 + tf.exp(-(preferred @ weights - other @ weights)))",
                "tf.nn.sigmoid(preferred @ weights - other @ weights)",
            ),
        ),
    ),
    "losses.contrastive_label_on_the_masked_diagonal": Patch(
        "Do not mask the class of the label", (("_logits(tf.range(size)", "_logits((tf.range(size) + 2) % size"),)
    ),
    "losses.softmax_by_hand": Patch(
        _SOFTMAX,
        (
            ("            powers = tf.exp(logits)  # culprit\n", ""),
            ("powers / tf.reduce_sum(powers, axis=-1, keepdims=True)", "tf.nn.softmax(logits)  # culprit"),
        ),
    ),
    "losses.softplus_by_hand": Patch(
        "Use tf.nn.softplus(x)",
        (("tf.math.log(1.0 + tf.exp(scale * inputs))", "tf.nn.softplus(scale * inputs)"),),
    ),
    "losses.wasserstein_temperature_in_log": Patch(
        "Train the logarithm of the variable",
        (("4.0 * tf.math.log(sigma)", "4.0 * tf.math.log(tf.nn.softplus(sigma))"),),
    ),
    "precision.cast_of_a_large_number_to_float16": Patch(
        "Cast to a dtype", (("values, tf.float16", "values, tf.float32"),)
    ),
    "precision.compound_growth": Patch(_SCALE, (("(1.0 + rate) **", "(1.0 + rate / 100.0) **"),)),
    "precision.epsilon_that_is_zero_in_float16": Patch(_EPSILON_16, (("1e-8)", "1e-3)"),)),
    "precision.exponential_of_ninety": Patch(
        _SOFTMAX,
        (
            ("        rate = tf.exp(log_rate)  # culprit\n", ""),
            ("rate / tf.reduce_sum(rate)", "tf.nn.softmax(log_rate)  # culprit"),
        ),
    ),
    "precision.float16_model_without_loss_scaling": Patch(
        _SCALE, (('set_dtype_policy("float16")', 'set_dtype_policy("float32")'),)
    ),
    "precision.gradient_of_a_fourth_power": Patch("Scale the inputs and the loss down", (("1e13", "1e-1"),)),
    "precision.gradient_that_overflows_without_a_loss_scale": Patch(
        "Cast to a dtype",
        (
            ('keras.layers.Rescaling(1e6, dtype="float32")', 'keras.layers.Rescaling(1.0, dtype="float32")'),
            ("1e6 * rng.normal(size=(64, 1))", "rng.normal(size=(64, 1))"),
        ),
    ),
    "precision.integer_division_to_a_scale_of_zero": Patch(
        "Keep the integer above 0", (("warmup = count // 10", "warmup = tf.maximum(count // 10, 1)"),)
    ),
    "precision.integer_that_wrapped": Patch(
        "If it should not be negative", (("tf.constant([50_000, 3], tf.int32)", "tf.constant([50_000.0, 3.0])"),)
    ),
    "precision.log_cosh_by_hand": Patch(
        "Clip the argument with tf.clip_by_value. For log(cosh(x))",
        (
            ("tf.cosh(y_pred - y_true)", "y_pred - y_true"),
            ("tf.math.log(spread)", "spread + tf.nn.softplus(-2.0 * spread) - tf.math.log(2.0)"),
        ),
    ),
    "precision.log_with_an_epsilon_that_is_zero_in_float16": Patch(
        _EPSILON_16, (("probs[1] + 1e-8", "probs[1] + 1e-3"),)
    ),
    "precision.loss_scale_beyond_float16": Patch(
        "Scale the inputs and the loss down", (("32768.0\n", "8.0\n"), ("/ 32768.0", "/ 8.0"))
    ),
    "precision.normalisation_in_mixed_precision": Patch(_EPSILON_16, (("+ 1e-12)", "+ 1e-3)"),)),
    "precision.number_of_cells_that_wraps_to_0": Patch(
        "If no factor is 0, the int32 overflowed",
        (("width * height", "tf.cast(width, tf.float32) * tf.cast(height, tf.float32)"),),
    ),
    "precision.product_of_many_odds": Patch(
        _LOGARITHMS,
        (
            (
                "tf.reduce_prod(odds) / (1.0 + tf.reduce_prod(odds + 1.0))",
                "tf.exp(tf.reduce_sum(tf.math.log(odds)) - tf.nn.softplus(tf.reduce_sum(tf.math.log(odds + 1.0))))",
            ),
        ),
    ),
    "precision.square_in_a_chain_with_a_root": Patch(_SCALE, (("tf.square(values)", "tf.square(1e-15 * values)"),)),
    "precision.square_in_the_gradient_of_a_fourth_power": Patch(
        "Scale the inputs and the loss down", (("1e19", "1e-1"),)
    ),
    "precision.squares_of_float16_activations": Patch(
        _SCALE, (("tf.square(values)", "tf.square(tf.cast(values, tf.float32))"),)
    ),
    "precision.sum_of_two_large_numbers": Patch(_SCALE, (("tf.constant(3e38)", "tf.constant(1e-3 * 3e38)"),)),
    "precision.unsigned_bytes_that_wrapped": Patch(
        "If it should not be 0",
        (("tf.cast(pixels + tf.constant(1, tf.uint8), tf.float32)", "tf.cast(pixels, tf.float32) + 1.0"),),
    ),
    "reinforcement.entropy_of_masked_actions": Patch(
        "Use a large finite number", (("observations @ weights, -np.inf)", "observations @ weights, -1e9)"),)
    ),
    "reinforcement.entropy_of_masked_actions_in_eager_code": Patch(
        "Use a large finite number", (("policy, -np.inf)", "policy, -1e9)"),)
    ),
    "reinforcement.entropy_temperature_grows": Patch(
        "Use tf.nn.softplus(x)",
        (
            ("            alpha = tf.exp(log_alpha)  # culprit\n", ""),
            ("tf.math.log1p(alpha) * 2.0", "tf.nn.softplus(log_alpha) * 2.0  # culprit"),
        ),
    ),
    "reinforcement.returns_that_are_not_discounted": Patch(_STATE, (("1e9 * total", "0.9 * total"),)),
    "scientific.convolution_that_overflows": Patch(_SCALE, (("conv2d(image,", "conv2d(1e-10 * image,"),)),
    "scientific.determinant_that_overflows": Patch(
        "Use tf.linalg.slogdet", (("tf.math.log(tf.linalg.det(matrix))", "tf.linalg.slogdet(matrix)[1]"),)
    ),
    "scientific.likelihood_of_a_concentrated_angle": Patch(
        "Use tf.math.bessel_i0e",
        (
            (
                "tf.math.log(tf.math.bessel_i0(concentration))",
                "tf.math.log(tf.math.bessel_i0e(concentration)) + tf.abs(concentration)",
            ),
        ),
    ),
    "scientific.log_determinant_of_a_singular_matrix": Patch(
        _JITTER, (("slogdet(matrix)", "slogdet(matrix + 1e-4 * tf.eye(2))"),)
    ),
    "scientific.logistic_map_beyond_its_range": Patch(_SCALE, (("tf.constant(1.5)", "tf.constant(0.15)"),)),
    "scientific.loss_that_is_only_reported_as_bad": Patch(
        "Change nothing if the program rejects such a result",
        (("tf.math.log(batch)", "tf.math.log(tf.maximum(batch, 1e-7))"),),
    ),
    "scientific.mean_of_covariances_one_of_them_singular": Patch(
        _JITTER, (("tf.cast(matrix, tf.complex64)", "tf.cast(matrix + 1e-4 * tf.eye(2), tf.complex64)"),)
    ),
    "scientific.phase_of_a_silent_bin": Patch(
        "Add a small number before tf.math.angle", (("angle(spectrum)", "angle(spectrum + 1e-6)"),)
    ),
    "scientific.power_iteration_on_a_zero_matrix": Patch(
        _VARIABLE, (("tf.Variable(tf.zeros([2, 2]))", "tf.Variable(tf.eye(2))"),)
    ),
    "scientific.second_derivative_of_a_distance": Patch(
        "Leave out the points where the root is 0, or use a function that is smooth there",
        (("tf.sqrt(tf.reduce_sum(tf.square(atoms[0] - atoms[1])))", "tf.reduce_sum(tf.square(atoms[0] - atoms[1]))"),),
    ),
    "scientific.sum_of_squares_that_overflows": Patch(
        _SCALE, (("tf.fill([8], 1.5e19)", "tf.fill([8], 1e-3 * 1.5e19)"),)
    ),
    "scientific.survival_probability_that_overflows": Patch(
        _LOGARITHMS, (("tf.math.log(tf.math.cumprod(hazards))", "tf.cumsum(tf.math.log(hazards))"),)
    ),
    "scientific.affinities_of_an_outlier": Patch(
        "Check the constants that RealDiv takes. Use tf.math.divide_no_nan",
        (
            (
                "weights / tf.reduce_sum(weights, 1, keepdims=True)",
                "tf.math.divide_no_nan(weights, tf.reduce_sum(weights, 1, keepdims=True))",
            ),
        ),
    ),
    "scientific.node_without_neighbours": Patch(
        "If a segment or row can be empty",
        (("maxima @ (4.0", "tf.where(tf.abs(maxima) < maxima.dtype.max, maxima, 0.0) @ (4.0"),),
    ),
    "scientific.tensor_contraction_that_overflows": Patch(
        _SCALE, (('"ij,jk->ik", left, right', '"ij,jk->ik", 1e-10 * left, 1e-10 * right'),)
    ),
    "scientific.triangular_system_with_a_zero_pivot": Patch(
        _JITTER, (("triangular_solve(matrix,", "triangular_solve(matrix + 1e-4 * tf.eye(2),"),)
    ),
    "sequences.ctc_loss_of_probabilities_in_float16": Patch(_EPSILON_16, (("shares + 1e-8", "shares + 1e-3"),)),
    "sequences.attention_mask_of_a_billion_in_float16": Patch(
        "Mask with a large negative number such as -1e4", (("0.0, -1e9)", "0.0, -1e4)"),)
    ),
    "sequences.attention_scores_overflow_in_float16": Patch(
        _SCALE, (("tf.matmul(query, query,", "tf.matmul(query / 8.0, query / 8.0,"),)
    ),
    "sequences.ctc_by_hand_over_probabilities": Patch(
        "Use tf.nn.log_softmax",
        (("        probs = tf.nn.softmax(logits)\n", ""), ("tf.math.log(probs)", "tf.nn.log_softmax(logits)")),
    ),
    "sequences.exploding_recurrence": Patch(_STATE, (("tf.eye(3) * 30.0", "tf.eye(3) * 0.9"),)),
    "sequences.forget_gate_by_hand": Patch(
        "Use tf.nn.sigmoid(x)",
        (("power = tf.exp(total)", "state = tf.nn.sigmoid(total)"), ("state = power / (1.0 + power)", "")),
    ),
    "sequences.label_longer_than_its_frames": Patch("Leave out labels that", (("labels[5] = 3", "labels[5, 2] = 3"),)),
    "sequences.mask_times_infinity": Patch(_FINITE, (('(1.0 - keep) * float("-inf")', "(1.0 - keep) * -1e9"),)),
    "sequences.pooling_of_keras_over_padding": Patch(
        _DIVIDE, (("[[1, 2, 0, 0], [0, 0, 0, 0]]), np.ones((2, 1)", "[[1, 2, 0, 0]]), np.ones((1, 1)"),)
    ),
    "sequences.pooling_scaled_by_the_logarithm_of_the_length": Patch(
        "Keep the argument above 0 before both ops",
        (("axis=1, keepdims=True)\n            scale", "axis=1, keepdims=True) + 1e-6\n            scale"),),
    ),
    "sequences.row_that_two_masks_of_the_lowest_number_mask": Patch(
        _ROW_OF_MASK, (("low = scores.dtype.min\n        padding", "low = -1e9\n        padding"),)
    ),
    "sequences.simple_rnn_with_exponential_activation": Patch(
        "Clip the argument from above",
        (('activation="exponential"', "activation=lambda x: tf.exp(tf.minimum(x, 22.0))"),),
    ),
    "sequences.softmax_by_hand_of_a_masked_row": Patch(_ROW_OF_MASK, (('inf = float("inf")', "inf = 1e9"),)),
    "sequences.softmax_of_the_logarithm_of_a_given_mask": Patch(
        _ROW_OF_MASK, (("tf.math.log(keep)", "(1.0 - keep) * -1e9"),)
    ),
    "sequences.square_of_scores_with_two_masks_of_the_lowest_number": Patch(
        _ROW_OF_MASK, (("scores.dtype.min\n        masked", "-1e9\n        masked"),)
    ),
    "zero_gradients.guarded_division_by_a_distance_in_where": Patch(
        "Put tf.where around the input of Sqrt",
        (("tf.sqrt(squares)", "tf.sqrt(tf.where(squares > 0.0, squares, 1.0))"),),
    ),
    "zero_gradients.guarded_division_in_where": Patch(
        _DOUBLE_WHERE, (("values / weights", "values / tf.where(weights > 0.0, weights, 1.0)"),)
    ),
    "zero_gradients.guarded_exponential_in_where": Patch(
        _DOUBLE_WHERE, (("tf.exp(x)", "tf.exp(tf.where(x > 0.0, 0.0, x))"),)
    ),
    "zero_gradients.guarded_log_in_where": Patch(
        _DOUBLE_WHERE, (("tf.math.log(product)", "tf.math.log(tf.where(product > 0.0, product, 1.0))"),)
    ),
    "zero_gradients.normalise_an_empty_row": Patch(
        "The norm is 0",
        (
            (
                "unit, _ = tf.linalg.normalize(rows, ord=1, axis=-1)",
                "unit = tf.math.divide_no_nan(rows, tf.norm(rows, ord=1, axis=-1, keepdims=True))",
            ),
        ),
    ),
}
"""The patch of each program that needs a patch."""
