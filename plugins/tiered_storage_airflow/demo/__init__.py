"""`make demo`: the product's main job from end to end, on parts that start and stop with it."""
