"""The HTTP side: routes and error responses."""

import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, FastAPI, Request, UploadFile
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ppmn import __version__
from ppmn.errors import InputError
from ppmn.grounding.grounder import Grounder
from ppmn.grounding.render import OPACITY, PALETTE
from ppmn.samples import installed_samples
from ppmn.serve import schemas
from ppmn.serve.guard import LOOPBACK, LOOPBACK_HOSTS, UPLOAD_PATH, Guard, error_response
from ppmn.serve.limits import Limits
from ppmn.serve.service import FileName, Service
from ppmn.serve.work_queue import WorkQueue

_STATIC = Path(__file__).parent / "static"
_JSON = "application/json"
_ImageId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$")]
_Responses = dict[int | str, dict[str, Any]]


def _error(status: int, description: str) -> _Responses:
    return {status: {"model": schemas.ErrorMessage, "description": description}}


def _content(*media_types: str) -> _Responses:
    """A response that is a file, for the OpenAPI document."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"content": {kind: {} if kind == _JSON else binary for kind in media_types}}}


def _media_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


_ERRORS = (
    _error(400, "The request cannot be read, or is sent to another host")
    | _error(401, "The token is missing or wrong")
    | _error(403, "Sent by a page of another site")
    | _error(413, "Larger than the limit")
    | _error(422, "A value in the request is wrong")
)
_WORK_ERRORS = (
    _ERRORS
    | _error(408, "The request did not arrive in time")
    | _error(503, "The queue is full: try again after Retry-After seconds")
    | _error(504, "The work took longer than the limit")
)
_IMAGE_ERRORS = _WORK_ERRORS | _error(404, "The image is not in the cache (any more)")
_router = APIRouter()


def create_app(
    grounder: Grounder, limits: Limits | None = None, host: str = "127.0.0.1", token: str | None = None
) -> FastAPI:
    """The server of one model; `host` is the address that it listens on."""
    service = Service(grounder, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="ppmn",
        version=__version__,
        description="Panoptic narrative grounding: a mask for every noun phrase of a caption.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads scripts from other servers
        redoc_url=None,
    )
    app.state.service = service
    hosts = LOOPBACK_HOSTS if host in LOOPBACK else ()  # otherwise the names of this machine are not known
    observe = service.counters.observe
    app.add_middleware(Guard, limits=service.limits, token=token, observe=observe, hosts=hosts)
    _add_error_handlers(app)
    app.include_router(_router)
    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_api_route(path, lambda name=name: FileResponse(_STATIC / name), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=_STATIC, packages=[("ppmn.grounding", "web")]))
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Every error is one sentence in JSON."""
    handler = app.exception_handler
    handler(InputError)(lambda request, error: error_response(422, str(error)))
    handler(Exception)(lambda request, error: error_response(500, "internal error; see the server's log"))

    @handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"] if part != "body")
        return error_response(422, f"{where or 'the request'}: {first['msg']}")


async def _find_service(request: Request) -> Any:
    return request.app.state.service


_Service = Annotated[Service, Depends(_find_service)]


async def _run(queue: WorkQueue, request: Request, call: Callable[[], bytes]) -> bytes:
    return await queue.run(call, request.is_disconnected, deadline=request.state.deadline)


async def _run_to_json(queue: WorkQueue, request: Request, call: Callable[[], bytes]) -> Response:
    return Response(await _run(queue, request, call), media_type=_JSON)


@_router.post(UPLOAD_PATH, response_model=schemas.ImageInfo, responses=_WORK_ERRORS)
async def encode_image(request: Request, service: _Service, image: UploadFile) -> Response:
    """Encode an image; the id in the response is used to ground captions on it."""
    return await _run_to_json(service.model_queue, request, lambda: service.encode(image.file.read()))


@_router.get("/api/images/{id}", responses=_IMAGE_ERRORS)
def describe_image(service: _Service, id: _ImageId) -> schemas.ImageInfo:
    """The size of an image that is in the cache."""
    return schemas.image_info(service.cached(id))


@_router.get(
    "/api/images/{id}/preview", response_class=Response, responses=_IMAGE_ERRORS | _content("image/jpeg")
)
def preview_image(service: _Service, id: _ImageId) -> Response:
    """The image upright, with at most 1,600 pixels on the longer side, as JPEG."""
    return Response(service.cached(id).preview, media_type="image/jpeg")


@_router.post("/api/images/{id}/ground", response_model=schemas.GroundingResult, responses=_IMAGE_ERRORS)
async def ground_caption(
    request: Request, service: _Service, id: _ImageId, body: schemas.GroundRequest
) -> Response:
    """Ground the phrases of a caption on an encoded image."""
    cached = service.cached(id)
    return await _run_to_json(service.model_queue, request, lambda: service.ground(cached, body))


@_router.post(
    "/api/images/{id}/files/{name}",
    response_class=Response,
    responses=_IMAGE_ERRORS | _content(*map(_media_type, get_args(FileName))),
)
async def ground_to_file(
    request: Request, service: _Service, id: _ImageId, name: FileName, body: schemas.FileRequest
) -> Response:
    """A grounding as a file; cutout.png is for a single phrase, cutouts.zip has one PNG for each."""
    cached = service.cached(id)
    content = await _run(service.model_queue, request, lambda: service.file(cached, name, body))
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, headers=headers, media_type=_media_type(name))


@_router.post("/api/phrases", response_model=schemas.CaptionPhrases, responses=_WORK_ERRORS)
async def list_phrases(request: Request, service: _Service, body: schemas.CaptionRequest) -> Response:
    """The noun phrases of a caption; no image is needed."""
    return await _run_to_json(service.text_queue, request, lambda: service.phrases(body))


@_router.get("/api/about", responses=_ERRORS)
def describe_server(service: _Service) -> schemas.ServerInfo:
    """The model, the limits and the samples."""
    return schemas.ServerInfo(
        version=__version__,
        model=service.grounder.name,
        threshold=service.grounder.threshold,
        calibrated=service.grounder.calibrated,
        opacity=OPACITY,
        palette=list(PALETTE),
        limits=asdict(service.limits),
        samples=[schemas.SampleInfo(name=s.name, caption=s.caption) for s in installed_samples()],
    )


@_router.get(
    "/api/samples/{number}",
    response_class=Response,
    responses=_ERRORS | _content("image/png", "image/jpeg") | _error(404, "There is no such sample"),
)
def send_sample(number: Annotated[int, PathParameter(ge=0, le=99)]) -> Response:
    """The image file of a sample that /api/about lists."""
    samples = installed_samples()
    if number >= len(samples):
        raise HTTPException(404, f"there is no sample {number}; there are {len(samples)}")
    file = samples[number].file
    assert file is not None
    return Response(file.read_bytes(), media_type=_media_type(file.name))


@_router.get("/healthz")
def report_health() -> dict[str, str]:
    """Whether the server is up."""
    return {"status": "ok"}


@_router.get("/metrics", response_class=Response, responses=_ERRORS | _content("text/plain"))
def report_metrics(service: _Service) -> Response:
    """Metrics in the Prometheus text format."""
    return Response(service.counters.text(), media_type="text/plain; version=0.0.4")
