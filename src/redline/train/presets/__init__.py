"""Named hyperparameters."""
