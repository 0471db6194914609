"""Short captions as people ask for things: `the person on the left`, or a noun alone: `dog`."""

from ppmn.synthetic.captions import GeneratedCaption, render
from ppmn.synthetic.distinctions import Distinction
from ppmn.synthetic.mentions import Mentioner
from ppmn.synthetic.nouns import NounForm, Word
from ppmn.synthetic.regions import Region
from ppmn.synthetic.wording import NounPhrase, Piece

REQUEST_COUNTS = (2, 6)  # least and most captions of this kind for an image with several things of a kind
_WRONG, _PLURAL = 0.25, 0.15  # shares that ask for what is not there, and for several things
_SMALLEST = 0.0015  # of the image that a thing covers
_OPENINGS = (("the",), (), ("find", "the"), ("show me", "the"), ("where is", "the"))
_OPENING_WEIGHTS = (0.45, 0.42, 0.05, 0.04, 0.04)
PLAIN_NOUNS = 4  # most captions of a noun alone for what is in the image, and as many for what is not
_NOUN_ALONE = 0.5  # how often what tells it apart is not part of the phrase


def requests(mentioner: Mentioner, *, wrong: bool) -> list[GeneratedCaption]:
    """Captions of one phrase each, if there are several of a kind; some of them `wrong` if that is asked."""
    kinds = mentioner.distinctions.kinds()
    large = [(r, kind) for kind in kinds for r in kind if r.area_fraction >= _SMALLEST]
    if not large:
        return []
    rng = mentioner.wording.rng
    order = rng.permutation(len(large))
    captions = []
    for n in range(int(rng.integers(REQUEST_COUNTS[0], REQUEST_COUNTS[1] + 1))):
        region, kind = large[int(order[n % len(order)])]
        if wrong and mentioner.chance(_WRONG):
            caption = _wrong(mentioner)
        elif mentioner.chance(_PLURAL):
            caption = _plural(mentioner, kind)
        else:
            distinction = mentioner.distinctions.choose(region, kind)
            word = mentioner.word_among(region)
            ids = (region.id,)
            caption = _request(mentioner, distinction, word.text, ids) if distinction and word else None
        if caption:
            captions.append(caption)
    return captions


def plain_nouns(mentioner: Mentioner) -> list[GeneratedCaption]:
    """Captions of a noun alone: for what is in the image, and as many for what is not."""
    vocabulary, rng = mentioner.vocabulary, mentioner.wording.rng
    kinds = list(vocabulary.by_category.values())
    captions: list[GeneratedCaption] = []
    for index in rng.permutation(len(kinds))[:PLAIN_NOUNS]:
        kind = kinds[int(index)]
        category, ids = kind[0].category, tuple(r.id for r in kind)
        forms: tuple[NounForm, ...] = tuple(NounForm)
        if category.isthing and not kind[0].crowd:
            forms = (NounForm.PLURAL if len(kind) > 1 else NounForm.SINGULAR, NounForm.MASS)
        if word := vocabulary.word(category, *forms):
            captions.append(_plain(mentioner, word, NounPhrase(word.text, ids, category.isthing)))
    for _ in range(max(len(captions), 1)):
        if missing := mentioner.absent_word():
            word, category = missing
            captions.append(_plain(mentioner, word, NounPhrase(word.text, (), category.isthing, absent=True)))
    return captions


def _plain(mentioner: Mentioner, word: Word, noun: NounPhrase) -> GeneratedCaption:
    article = mentioner.wording.article(word.text, word) if mentioner.chance(0.5) else ()
    return render([*article, noun], raw=True)


def _plural(mentioner: Mentioner, kind: list[Region]) -> GeneratedCaption | None:
    mentions = mentioner.of_one_side(kind) or mentioner.all_of(kind)
    if not mentions or mentions[0] is None:
        return None
    side = mentions[0].required_side
    place = (f"{'on' if side in ('left', 'right') else 'at'} the", NounPhrase(side)) if side else ()
    return render([*mentions[0].pieces, *place], raw=True)


def _wrong(mentioner: Mentioner) -> GeneratedCaption | None:
    found = mentioner.distinctions.wrong()
    word = mentioner.word_among(found[0]) if found else None
    return _request(mentioner, found[1], word.text, ()) if found and word else None


def _request(
    mentioner: Mentioner, distinction: Distinction, noun: str, ids: tuple[int, ...]
) -> GeneratedCaption:
    """The phrase is the noun alone, or all words after the article, now and then with it."""
    opening: tuple[str, ...] = mentioner.wording.choose(_OPENINGS, _OPENING_WEIGHTS)
    pieces: list[Piece] = list(opening)
    absent = not ids
    if distinction.after and mentioner.chance(_NOUN_ALONE):
        pieces.append(NounPhrase(f"{distinction.before} {noun}".strip(), ids, True, absent))
        pieces += distinction.outside()
    else:
        text = distinction.inside(noun)
        if opening == ("the",) and mentioner.chance(0.2):
            pieces, text = [], f"the {text}"
        pieces.append(NounPhrase(text, ids, True, absent))
    return render(pieces, raw=True)
