"""Small worlds whose right answers are known: homes with traces, feedback and trained versions,
made through the public verbs."""
