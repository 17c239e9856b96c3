"""A version where it answers: targets, the canary that proves what is served, the switch of an
alias and the way back."""
