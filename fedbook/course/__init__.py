"""The course around the book: checked exercises, assignments for nbgrader, the student edition, the
glossary."""
