"""Running an evaluation: tasks, rollouts, retries, and the results as they come."""
