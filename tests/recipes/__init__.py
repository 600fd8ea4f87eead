"""The four examples of CONTRIBUTING.md; tests/unit/test_recipes.py and test_recipe_dag.py run them."""
