"""Tagged sentences in the style of spoken image descriptions, drawn from word lists and a small grammar."""

import random
import re
from collections.abc import Callable

Sentence = list[tuple[str, str]]


def _words(text: str) -> list[str]:
    return text.split()


# fmt: off
THINGS = _words("""
    man woman boy girl child kid person lady baby player tennis-player skier surfer rider driver cyclist
    pedestrian bicycle bike motorcycle motorbike scooter car bus train truck van vehicle boat ship airplane
    aeroplane kite surfboard skateboard snowboard ball bat racket glove helmet cap hat shirt t-shirt jacket
    coat dress suit tie trouser short jean pant shoe sock scarf bag handbag backpack suitcase umbrella watch
    ring spectacle goggle dog cat horse cow sheep elephant zebra giraffe bear bird duck banana apple orange
    carrot pizza sandwich cake donut burger bowl plate cup glass bottle fork knife spoon tray jar mug pan
    table chair sofa couch bench stool bed pillow cushion blanket bedsheet curtain lamp bulb fan clock
    mirror frame shelf rack cupboard cabinet drawer desk counter sink tap basin toilet tub towel oven stove
    microwave refrigerator fridge toaster laptop computer monitor keyboard mouse phone remote television
    book magazine newspaper paper pen box basket bucket bin dustbin vase pot plant flower tree branch trunk
    leaf bush shrub hedge grass lawn field hill mountain rock stone road street path pavement sidewalk
    footpath bridge pole post board banner poster sign signal light streetlight wire cable fence railing
    gate wall pillar window door roof ceiling floor carpet mat rug building house tower shed tent hut shop
    store stall church station platform track river lake pond sea beach wave boat dock cloud sky stair step
    ladder wheel tyre tire seat handle engine mirror windshield hydrant meter cone barrier barricade statue
    sculpture toy doll teddy candle balloon flag ribbon rope net stick rod pipe hand head leg face ear tail
    neck mouth hair body eye nose paw wing beak cloth napkin tissue label sticker logo camera speaker
    machine printer device plug socket switch cord tile brick log bench umbrella kettle blender
    cutting-board container crowd shadow reflection cupcake slice piece fruit vegetable salad soup bread
    cheese meat sauce drink juice coffee tea wine beer food snow sand soil mud water ground floor greenery
    furniture luggage text number letter word name object item thing image picture photo background
    foreground side corner top bottom middle center centre front back left right edge view scene area room
    kitchen bathroom bedroom street city park zoo garden playground court stadium runway airport market
    restaurant office hall classroom group bunch couple pair row line set pile stack herd flock lot number
    color colour design pattern shape style uniform costume collar sleeve belt strap chain necklace bracelet
    mask firehose windowpane tabletop countertop rooftop lamppost signboard nightstand headboard bookshelf
    fireplace chimney staircase dashboard trailer tractor cart wagon carriage trolley stroller crane
    helicopter jet rocket
""")
OFTEN = _words("""
    object tree chair window light wall table pillow frame stand blind plant board pole vehicle building
    book bottle flower cupboard curtain item thing rock shelf box cup plate bag car boat lamp mirror door
    banner bench umbrella railing leaf cushion painting fence stone branch sign house hill cloud bowl glass
    poster
""")
ING_NAMES = _words("""
    building painting ceiling railing fencing clothing lighting flooring wedding drawing awning crossing
    landing roofing siding seating parking ring earring string wing stuffing dressing pudding topping icing
    frosting carving hanging covering opening greeting bedding mooring scaffolding
""")
STUFF = _words("""
    sky water grass snow sand ground soil mud greenery food rice fruit furniture luggage text smoke fog ice
    clothing cutlery traffic equipment hair wood metal glass land sea wall floor road ceiling sunlight steam
    foam meat bread cheese sauce pasta lettuce broccoli ketchup mustard hay gravel concrete asphalt
""")
MANY = _words("""
    people men women children kids persons leaves knives shelves branches benches dishes glasses stairs
    scissors jeans shorts trousers pants goggles spectacles sunglasses vegetables fruits clothes buses
    sandwiches players spectators audience bicycles vehicles clouds utensils skis boots sheep cattle fries
    french-fries headphones curtains blinds eyes tracks rails tongs mountains hills rocks stones pebbles
    waves
""")
COMPOUND = _words("""
    traffic stop street tennis baseball soccer sign light lamp wall photo picture flower water wash kitchen
    dining coffee computer hand shoulder teddy hot fire parking railway train bus window door metal glass
    brick stone concrete iron steel plastic cloth paper tree wine cell mobile remote ski snow surf skate
    electric garbage trash dust night road side power phone board name number flush shower toilet bath bed
    pillow ceiling table exhaust air life safety sports face shopping mini polo ice chocolate birthday
    christmas vegetable fruit cheese potato tomato
""")
PAIRS = [pair.split() for pair in re.split(",", """
    dining table, dining chair, living room, swimming pool, washing machine, wash basin, cutting board,
    chopping board, sliding door, parking lot, parking meter, shopping cart, shopping bag, skating rink,
    frying pan, rocking chair, dressing table, baking tray, sewing machine, running shoe, fishing rod,
    boxing ring, sleeping bag, steering wheel, serving spoon, building block, ironing board, hiking trail,
    riding boot, playing card, hot dog, ice cream, trash can, garbage can, soda can, flip flop, street
    light, traffic light, lamp post, sky line
""")]
ADJECTIVES = _words("""
    white black red blue green yellow orange brown pink purple grey gray silver golden maroon beige cream
    violet dark light bright pale colorful colourful multicolor transparent big small large little huge tiny
    tall short long wide narrow thick thin round square rectangular circular wooden metallic plastic old
    young new modern ancient empty full open closed dry wet clean dirty cloudy clear sunny snowy sandy
    grassy rocky muddy green leafy bare different various several other same many few more striped checked
    checkered floral printed decorative electric electronic digital front rear back upper lower left right
    top bottom central inner outer main double elderly adult male female asian bald furry fluffy fresh raw
    ripe sliced baked fried cooked chopped stuffed visible blurry blurred calm shiny rusty artificial public
    residential tiled paved framed potted dried stained colored coloured wheeled bearded spotted decorated
    designed
""")
FINITE_ING = _words("""
    standing sitting walking riding holding wearing carrying playing looking smiling running lying sleeping
    jumping skating skiing surfing swimming eating drinking cooking cutting driving flying hanging moving
    talking posing watching grazing leaning bending crossing catching throwing hitting swinging pulling
    pushing touching facing showing covering having containing waiting working reading floating resting
    kneeling climbing crouching squatting staring using feeding laying travelling passing growing going
    coming performing
""")
VERBS = _words("""
    stand sit walk ride hold wear carry play look smile run lie sleep jump skate ski surf swim eat drink
    cook cut drive fly hang move talk pose watch graze lean bend catch throw hit swing pull push touch face
    show cover wait work read float rest kneel climb lead rise feed grow pass travel hug lick chase reach
    stretch point use fill line surround serve prepare wash brush gather wander stare gaze relax perch lay
    roll slide bite chew kick stop turn make take get try go come
""")
PARTICIPLES = _words("""
    parked placed kept attached covered filled written fixed hung hanged arranged surrounded seated painted
    printed made decorated topped tied wrapped connected mounted loaded stacked packed lined displayed
    opened closed seen taken clicked captured shown pasted covered dressed served cut held piled gathered
    spread scattered planted built located situated folded lit turned crossed raised stretched
""")
PREPOSITIONS = _words("""
    on in with of at near behind beside under above below beneath through between around over inside along
    across by against towards from into onto besides among beyond
""")
COUNTS = _words("one two three four five six seven ten 2 3 4")
# fmt: on


def pick(words: list[str]) -> str:
    return random.choice(words)


def maybe(share: float, *words: tuple[str, str]) -> Sentence:
    return list(words) if random.random() < share else []


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith(("leaf", "shelf")):
        return noun[:-1] + "ves"
    if noun.endswith("y") and noun[-2] not in "aeo":
        return noun[:-1] + "ies"
    return noun + "s"


def noun() -> str:
    return pick(OFTEN) if random.random() < 0.35 else pick(THINGS + ING_NAMES * 2)


def modifiers() -> Sentence:
    words = maybe(0.45, (pick(ADJECTIVES), "JJ")) + maybe(0.12, (pick(ADJECTIVES), "JJ"))
    if random.random() < 0.06:
        words = [(pick(ADJECTIVES), "JJ"), ("and", "CC"), (pick(ADJECTIVES), "JJ")]
    words += maybe(0.06, pick_of(("color", "NN"), ("colour", "NN"), ("colored", "JJ"), ("coloured", "JJ")))
    return words + maybe(0.2, (pick(COMPOUND), "NN"))


def pair(last: str = "NN") -> Sentence:
    first, second = random.choice(PAIRS)
    return [
        ("hot", "JJ") if first == "hot" else (first, "NN"),
        (plural(second) if last == "NNS" else second, last),
    ]


def one() -> Sentence:
    article = pick(["a", "a", "a", "the", "the", "this", "that", "another", "an"])
    named = pair() if random.random() < 0.07 else [*modifiers(), (noun(), "NN")]
    return [*maybe(0.85, (article, "DT")), *named]


def several() -> Sentence:
    many = pick(MANY) if random.random() < 0.25 else plural(noun())
    amount: list[Sentence] = [
        [],
        [("the", "DT")],
        [("some", "DT")],
        [("few", "JJ")],
        [("a", "DT"), ("few", "JJ")],
        [("many", "JJ")],
        [("several", "JJ")],
        [("these", "DT")],
        [(pick(COUNTS), "CD")],
        [("a", "DT"), (pick(["group", "bunch", "couple", "number", "lot", "pair"]), "NN"), ("of", "IN")],
        [("some", "DT"), ("other", "JJ")],
        [("his", "PRP$")],
        [("their", "PRP$")],
    ]
    named = pair("NNS") if random.random() < 0.07 else [*modifiers(), (many, "NNS")]
    return random.choice(amount) + named


def mass() -> Sentence:
    return [*maybe(0.4, (pick(["the", "some"]), "DT")), *modifiers(), (pick(STUFF), "NN")]


def thing() -> Sentence:
    return random.choice([one, one, several, mass])()


def place() -> Sentence:
    side = [
        *maybe(0.5, (pick(["left", "right", "top", "bottom"]), "JJ")),
        (pick(["side", "corner", "part"]), "NN"),
    ]
    spots = [
        "background",
        "foreground",
        "middle",
        "center",
        "bottom",
        "top",
        "left",
        "right",
        "front",
        "back",
    ]
    where = [(pick(["in", "on", "at", "to"]), "IN"), ("the", "DT")]
    where += side if random.random() < 0.4 else [(pick(spots), "NN")]
    return where + maybe(
        0.4, ("of", "IN"), pick_of(("the", "DT"), ("this", "DT")), (pick(["image", "picture", "photo"]), "NN")
    )


def doing() -> Sentence:
    if random.random() < 0.25:
        return [(pick(FINITE_ING), "VBG"), *maybe(0.3, ("and", "CC"), (pick(FINITE_ING), "VBG"))]
    return [
        (pick(FINITE_ING), "VBG"),
        *maybe(0.75, (pick(PREPOSITIONS), "IN")),
        *thing(),
        *(maybe(0.25, ("and", "CC"), (pick(FINITE_ING), "VBG"), (pick(PREPOSITIONS), "IN")) + thing()
          if random.random() < 0.2 else []),
    ]  # fmt: skip


def does(tag: str) -> Sentence:
    verb = pick(VERBS)
    return [
        (plural(verb) if tag == "VBZ" else verb, tag),
        *maybe(0.1, pick_of(("up", "RP"), ("down", "RP"), ("out", "RP"))),
        *maybe(0.65, (pick(PREPOSITIONS), "IN")),
        *thing(),
    ]


def pick_of(*words: tuple[str, str]) -> tuple[str, str]:
    return random.choice(words)


def done() -> Sentence:
    return [
        (pick(PARTICIPLES), "VBN"),
        (pick(["on", "in", "with", "by", "to", "near", "at"]), "IN"),
        *thing(),
    ]


def in_color() -> Sentence:
    return [(pick(ADJECTIVES[:12]), "JJ"), ("color", "NN")]


def located() -> Sentence:
    tail: list[Callable[[], Sentence]] = [
        lambda: [(pick(PREPOSITIONS), "IN"), *thing()], doing, done, place,
        lambda: [("which", "WDT"), ("is", "VBZ"), *done()],
        lambda: [("who", "WP"), ("is", "VBZ"), *doing()],
        lambda: [("which", "WDT"), ("are", "VBP"), ("in", "IN"), *in_color()],
        lambda: [("in", "IN"), ("front", "NN"), ("of", "IN"), *thing()],
        lambda: [("next", "JJ"), ("to", "IN"), *thing()],
    ]  # fmt: skip
    return thing() + (random.choice(tail)() if random.random() < 0.6 else [])


def listing() -> Sentence:
    words = located()
    for _ in range(random.choice([0, 0, 1, 1, 2, 4])):
        words += [(",", ","), *located()]
    return words + (maybe(0.6, ("and", "CC")) and [("and", "CC"), *located()])


def opening() -> Sentence:
    shown: list[Sentence] = [
        [(pick(["I", "we", "i"]), "PRP"), ("can", "MD"), *maybe(0.15, ("also", "RB")),
         (pick(["see", "see", "observe"]), "VB")],
        [("there", "EX"), ("is", "VBZ")],
        [("there", "EX"), ("are", "VBP")],
        [("we", "PRP"), ("see", "VBP")],
        [("it", "PRP"), ("looks", "VBZ"), ("like", "IN")],
        [("it", "PRP"), ("seems", "VBZ"), ("to", "TO"), ("be", "VB")],
    ]  # fmt: skip
    first: list[Sentence] = [
        [("in", "IN"), ("this", "DT"), (pick(["image", "picture", "photo"]), "NN")],
        [("in", "IN"), ("the", "DT"), (pick(["image", "picture"]), "NN")],
        [("here", "RB")], [], [("and", "CC")],
        place(),
        [(pick(PREPOSITIONS), "IN"), *one()],
    ]  # fmt: skip
    return random.choice(first) + maybe(0.3, (",", ",")) + random.choice(shown)


def statement() -> Sentence:
    is_, are = [("is", "VBZ")], [("are", "VBP")]
    whole: list[Sentence] = [
        [*one(), *does("VBZ")],
        [*one(), *doing(), *does("VBZ")],
        [*several(), *does("VBP")],
        [*one(), *does("VBZ"), ("and", "CC"), *does("VBZ")],
        [*one(), *does("VBZ"), ("while", "IN"), *one(), *does("VBZ")],
        [*thing(), *doing()],
        [*thing(), (pick(PREPOSITIONS), "IN"), *thing(), (pick(PREPOSITIONS), "IN"), *thing()],
        [*one(), *is_, *doing()],
        [*several(), *are, *doing()],
        [*one(), *is_, *done()],
        [*several(), *are, *done()],
        [*one(), *is_, *place()],
        [*several(), *are, (pick(["visible", "present"]), "JJ"), *place()],
        [*one(), ("can", "MD"), ("be", "VB"), ("seen", "VBN"), *place()],
        [*one(), *is_, (pick(ADJECTIVES), "JJ")],
        [*one(), *is_, ("in", "IN"), (pick(ADJECTIVES[:12]), "JJ"), ("color", "NN")],
        [("he", "PRP"), *is_, *doing()],
        [("they", "PRP"), *are, *doing()],
        [("the", "DT"), (pick(["image", "picture"]), "NN"), *is_, (pick(["taken", "clicked"]), "VBN"),
         (pick(["outside", "indoors", "outdoors"]), "RB")],
        [("this", "DT"), ("is", "VBZ"), *one()],
        [("this", "DT"), ("image", "NN"), ("consists", "VBZ"), ("of", "IN"), *listing()],
        [*one(), ("and", "CC"), *one(), *are, *doing()],
    ]  # fmt: skip
    return random.choice(whole)


def sentences(count: int) -> list[Sentence]:
    """Drawn sentences; the first word has a capital, the last is mostly a full stop."""
    drawn = []
    for _ in range(count):
        words = opening() + listing() if random.random() < 0.5 else statement()
        words += maybe(0.3, (",", ",")) and [(",", ","), *place(), *opening()[-2:], *located()]
        first, tag = words[0]
        drawn.append([(first[:1].upper() + first[1:], tag), *words[1:], *maybe(0.9, (".", "."))])
    return drawn
