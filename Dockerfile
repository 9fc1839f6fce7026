# docker build -t fedbook . && docker run -p 8888:8888 fedbook
FROM python:3.11-slim
RUN useradd --create-home reader
WORKDIR /home/reader/book
COPY --chown=reader . .
RUN pip install --no-cache-dir -e '.[all]'
USER reader
EXPOSE 8888
CMD ["fedbook", "lab", "--ip=0.0.0.0", "--no-browser"]
