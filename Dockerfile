# The image for Astro: its runtime with Airflow 3.3, the packages of packages.txt (Java for Spark) and requirements.txt,
# both of which the runtime's own build steps install.
#
# Name the runtime image as `astro dev init` writes it into the Dockerfile of a new project:
#   docker build --build-arg ASTRO_RUNTIME_IMAGE=… .
#
# Not verified: no Docker engine ran where this file was written, so this image has never been built.
ARG ASTRO_RUNTIME_IMAGE
FROM ${ASTRO_RUNTIME_IMAGE}

# The only two import roots: the library `tiered_storage` and the shell `tiered_storage_airflow`.
ENV PYTHONPATH=/usr/local/airflow/include:/usr/local/airflow/plugins
