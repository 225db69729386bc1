"""Games that Redline brings along: native ones in tensor operations, and a few for Gymnasium."""
