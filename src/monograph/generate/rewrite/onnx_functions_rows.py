"""ONNX functions that sample rows with options of their own (see `row_sampling`)."""

from __future__ import annotations

# Gumbel noise [batch, vocabulary], a function of a row's seed and position and of the token.
_ROW_NOISE = """
RowNoise (logits, position, seed) => (noise) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axis = Constant <value_ints = [1]> ()
  sizes = Shape <start = 1, end = 2> (logits)
  size = Squeeze (sizes)
  tokens = Range (zero, size, one)
  seed32 = Cast <to = 12> (seed)
  position32 = Cast <to = 12> (position)
  h0 = monograph.Mix (seed32)
  h1 = Add (h0, position32)
  h2 = monograph.Mix (h1)
  key = Unsqueeze (h2, axis)
  noise = monograph.TokenNoise (tokens, key)
}
"""

# Logits over the temperature of their row; unchanged at temperature 0.
_SCALE_ROWS = """
ScaleRows (logits, temperature) => (scaled) {
  axis = Constant <value_ints = [1]> ()
  zero = Constant <value_float = 0.0> ()
  one = Constant <value_float = 1.0> ()
  column = Unsqueeze (temperature, axis)
  drawn = Greater (column, zero)
  safe = Where (drawn, column, one)
  scaled = Div (logits, safe)
}
"""

# Scores whose largest is the token: with noise, or the logits at temperature 0.
_ROW_SCORES = """
RowScores (logits, scaled, position, seed, temperature) => (scores) {
  axis = Constant <value_ints = [1]> ()
  zero = Constant <value_float = 0.0> ()
  column = Unsqueeze (temperature, axis)
  drawn = Greater (column, zero)
  noise = monograph.RowNoise (logits, position, seed)
  noisy = Add (scaled, noise)
  scores = Where (drawn, noisy, logits)
}
"""

# Scores of the most likely tokens; -inf for others. Rows at temperature 0 stay as they are.
_LIMIT_ROWS = """
LimitRows (scaled, scores, temperature, top_k, top_p, min_p) => (limited) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axis = Constant <value_int = 1> ()
  axes = Constant <value_ints = [1]> ()
  from0 = Constant <value_ints = [0]> ()
  nothing = Constant <value_float = 0.0> ()
  least = Constant <value_float = -inf> ()
  size = Shape <start = 1, end = 2> (scaled)
  last = Squeeze (size)
  values, tokens = TopK <axis = 1> (scaled, size)
  shares = Softmax <axis = 1> (values)
  before = CumSum <exclusive = 1> (shares, axis)
  p = Unsqueeze (top_p, axes)
  in_p = Less (before, p)
  ranks = Range (zero, last, one)
  k = Unsqueeze (top_k, axes)
  in_k = Less (ranks, k)
  m = Unsqueeze (min_p, axes)
  first = Slice (shares, from0, axes, axes)
  lowest = Mul (first, m)
  in_m = GreaterOrEqual (shares, lowest)
  both = And (in_p, in_k)
  kept = And (both, in_m)
  marks = Cast <to = 2> (kept)
  shape = Shape (scaled)
  none = ConstantOfShape <value = uint8[1] {0}> (shape)
  placed = ScatterElements <axis = 1> (none, tokens, marks)
  allowed = Cast <to = 9> (placed)
  column = Unsqueeze (temperature, axes)
  drawn = Greater (column, nothing)
  greedy = Not (drawn)
  free = Or (allowed, greedy)
  limited = Where (free, scores, least)
}
"""

# Seen tokens become less likely by a factor, then each token by its bias.
_ADJUST_ROWS = """
AdjustRows (logits, seen, penalty, bias) => (changed) {
  axis = Constant <value_ints = [1]> ()
  zero = Constant <value_float = 0.0> ()
  had = Cast <to = 9> (seen)
  column = Unsqueeze (penalty, axis)
  less = Less (logits, zero)
  multiplied = Mul (logits, column)
  divided = Div (logits, column)
  lower = Where (less, multiplied, divided)
  penalised = Where (had, lower, logits)
  changed = Add (penalised, bias)
}
"""

ROWS = (_ROW_NOISE, _SCALE_ROWS, _ROW_SCORES, _LIMIT_ROWS, _ADJUST_ROWS)
