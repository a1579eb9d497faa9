"""A contest problem, which training data must not hold."""

# AIME 1983, problem 1; the answer is 60.
AIME = (
    "Let $x$, $y$ and $z$ all exceed $1$ and let $w$ be a positive number such that $\\log_x w = 24$, "
    "$\\log_y w = 40$ and $\\log_{xyz} w = 12$. Find $\\log_z w$."
)
