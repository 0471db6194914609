"""The HTTP side: routes, and what becomes of their errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, File, Request, UploadFile
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ppmn import __version__
from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.render import OPACITY, PALETTE
from ppmn.serve import schemas as answers
from ppmn.serve.counters import Metrics
from ppmn.serve.guard import Guard, problem
from ppmn.serve.image_cache import ImageCache
from ppmn.serve.limits import Limits
from ppmn.serve.samples import sample_photo, samples
from ppmn.serve.service import FILES, FileName, ImageGoneError, Service
from ppmn.serve.work_queue import ClientGoneError, QueueFullError, TooLongError, Work

STATIC = Path(__file__).parent / "static"
JSON = "application/json"
LookId = Annotated[str, InPath(pattern="^[0-9a-f]{32}$")]
WRONG: dict[int | str, dict[str, Any]] = {
    401: {"model": answers.Problem, "description": "The token is missing or wrong"},
    403: {"model": answers.Problem, "description": "Asked by another site or under another name"},
    413: {"model": answers.Problem, "description": "Larger than the limit"},
    422: {"model": answers.Problem, "description": "Something in the request is wrong"},
}
WORK = WRONG | {
    400: {"model": answers.Problem, "description": "The request cannot be read"},
    408: {"model": answers.Problem, "description": "The request did not arrive in time"},
    503: {"model": answers.Problem, "description": "The queue is full: come again after Retry-After seconds"},
    504: {"model": answers.Problem, "description": "The work took longer than the limit"},
}
LOOK = WORK | {404: {"model": answers.Problem, "description": "The photo is not kept (any more)"}}


def create_app(
    grounder: Grounder, limits: Limits | None = None, host: str = "127.0.0.1", token: str | None = None
) -> FastAPI:
    """The server of one model; `host` is what it is bound to."""
    limits = limits or Limits()
    model = Work("model", limits.queue, limits.seconds)
    words = Work("words", limits.queue, limits.seconds)  # finding phrases does not wait for photos
    looks = ImageCache(limits.looks, limits.cache * 1_000_000)
    metrics = Metrics(looks, model, words)
    service = Service(grounder, limits, looks, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*(asyncio.to_thread(w.close) for w in (model, words)))

    app = FastAPI(
        title="ppmn",
        version=__version__,
        description="Panoptic narrative grounding: a mask for every noun phrase of a caption.",
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Guard, limits=limits, host=host, token=token, seen=_observer(metrics))
    _errors(app)
    _api(app, service, model, words)

    @app.get("/api/about", responses=WRONG)
    def about() -> answers.About:
        """The model, the limits, the samples."""
        return answers.About(
            version=__version__,
            model=grounder.name,
            threshold=grounder.threshold,
            opacity=OPACITY,
            palette=list(PALETTE),
            limits=asdict(limits),
            samples=list(samples()),
        )

    _pages(app, metrics)
    return app


def _api(app: FastAPI, service: Service, model: Work, words: Work) -> None:
    async def answer(work: Work, request: Request, call: Callable[[], bytes], kind: str = JSON) -> Response:
        return Response(await work.do(call, request.is_disconnected), media_type=kind)

    @app.post("/api/looks", response_model=answers.EncodedImageInfo, responses=WORK)
    async def look(request: Request, photo: Annotated[UploadFile, File()]) -> Response:
        """EncodedImage at a photo; captions follow under the id that is answered."""
        return await answer(model, request, lambda: service.look(photo.file.read()))

    @app.get("/api/looks/{id}", responses=LOOK)
    def seen(id: LookId) -> answers.EncodedImageInfo:
        """Whether a photo is still kept, and its size."""
        return answers.image_info(service.kept(id))

    @app.get("/api/looks/{id}/photo", response_class=Response, responses=LOOK | _content("image/jpeg"))
    def photo(id: LookId) -> Response:
        """The photo upright, at most 1,600 pixels long, as JPEG."""
        return Response(service.kept(id).preview, media_type="image/jpeg")

    @app.post("/api/looks/{id}/ground", response_model=answers.Grounded, responses=LOOK)
    async def ground(id: LookId, asked: answers.GroundRequest, request: Request) -> Response:
        """Find a caption's phrases on a photo that has been looked at."""
        kept = service.kept(id)
        return await answer(model, request, lambda: service.ground(kept, asked))

    @app.post(
        "/api/looks/{id}/files/{name}", response_class=Response, responses=LOOK | _content(*FILES.values())
    )
    async def file(id: LookId, name: FileName, asked: answers.FileRequest, request: Request) -> Response:
        """A grounding as a file: overlay.png, panoptic.png, panoptic.json, coco.json or page.html."""
        kept = service.kept(id)
        found = await answer(model, request, lambda: service.file(kept, name, asked), FILES[name])
        found.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return found

    @app.post("/api/phrases", response_model=answers.Phrases, responses=WORK)
    async def phrases(asked: answers.CaptionRequest, request: Request) -> Response:
        """The noun phrases of a caption; no photo is needed."""
        return await answer(words, request, lambda: service.phrases(asked))

    @app.get(
        "/api/samples/{number}",
        response_class=Response,
        responses=WRONG | _content("image/png", "image/jpeg") | {404: LOOK[404]},
    )
    def sample(number: Annotated[int, InPath(ge=0, le=99)]) -> Response:
        """The photo of a sample that /api/about lists."""
        if number >= len(samples()):
            raise HTTPException(404, f"there is no sample {number}; there are {len(samples())}")
        content = sample_photo(number)
        return Response(content, media_type="image/png" if content[:1] == b"\x89" else "image/jpeg")


def _pages(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Whether the server is up."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses=WRONG | _content("text/plain"))
    def numbers() -> Response:
        """Counters in Prometheus' form."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_api_route(path, lambda name=name: FileResponse(STATIC / name), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))


def _errors(app: FastAPI) -> None:
    """Every error is one sentence in JSON."""
    handle = app.exception_handler
    handle(InputError)(lambda request, error: problem(422, str(error)))
    handle(ImageGoneError)(lambda request, error: problem(404, str(error)))
    handle(TooLongError)(lambda request, error: problem(504, str(error)))
    handle(ClientGoneError)(lambda request, error: problem(499, "the client has gone"))
    handle(Exception)(lambda request, error: problem(500, "something went wrong; the server's log says what"))

    @handle(QueueFullError)
    def busy(request: Request, error: QueueFullError) -> Response:
        return problem(503, str(error), {"Retry-After": str(error.retry)})

    @handle(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))

    @handle(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"] if part != "body")
        return problem(422, f"{where or 'the request'}: {first['msg']}")


def _observer(metrics: Metrics) -> Callable[[str, int, float], None]:
    return lambda route, status, seconds: metrics.seconds.labels(route, status).observe(seconds)


def _content(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is a file, for the OpenAPI document."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"content": {kind: {} if kind == JSON else binary for kind in kinds}}}
