"""Forms in which columns cross from Python to the JVM quicker than in their own."""
