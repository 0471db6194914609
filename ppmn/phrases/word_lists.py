"""Words that the rules for noun phrases treat by name rather than by tag."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DETERMINERS = _words("a an the this that these those my your his her its our their whose teh hte thr th")
UNCOUNTED = _words("all both each every either any no more most much other some another")
AMOUNTS = UNCOUNTED | _words(
    "few many several multiple numerous various one two three four five six seven eight nine ten eleven"
    " twelve dozen hundred"
)

# "group of people" and "slice of pizza" are one phrase: the first noun only says how much.
MEASURE_NOUNS = _words(
    "group groups couple couples bunch bunches number numbers pair pairs lot lots set sets crowd crowds"
    " row rows herd herds flock flocks line lines series collection variety varieties range dozens"
    " hundreds plenty pile piles stack stacks heap heaps kind kinds type types sort sorts team array"
    " cluster clusters pack load loads amount piece pieces slice slices glass glasses cup cups mug mugs"
)
# These make a phrase plural, as a plural noun does.
PLURAL_WORDS = _words(
    "few many several both multiple numerous various group groups couple bunch number pair lot lots crowd"
    " row rows herd flock pile stack heap dozens hundreds"
)
PLURAL_NOUNS = _words("people men women children teeth feet cattle geese mice")
# Singulars that name several things.
THING_MASSES = _words(
    "audience band baggage class crew cutlery family fleet flock fruit furniture jewelry jewellery livestock"
    " luggage produce silverware staff team traffic troop"
)
SINGULAR_NOUNS = _words("lens gas canvas christmas news atlas 's s")

# Places in a picture: modifiers before a noun ("left side"), nouns after an article ("on the left").
PLACE_WORDS = _words(
    "left right top bottom middle center centre front back side sides corner corners end ends edge edges"
    " part portion backside bottom-left bottom-right top-left top-right"
)
DIRECTIONS = PLACE_WORDS | _words("upper lower extreme far opposite left-hand right-hand hand very")
ORDINALS = _words("first second third fourth fifth sixth seventh eighth ninth tenth last next")
# Not nouns, whatever the tag: "second car", "the horse closest to us".
ALWAYS_MODIFIERS = ORDINALS | _words("closest nearest farthest furthest leftmost rightmost topmost")
# Nouns that name the picture itself (unlike "a picture on the wall"), and others that name no object.
PICTURE_NOUNS = _words("picture photo photograph pic snap")
ABSTRACT_NOUNS = _words(
    "image images background backdrop foreground view scene color colour colors colours day daytime night"
    " time way direction directions distance kind type shape size manner close-up closeup"
)

# Modifiers that are nouns ("white color shirt"), and participles joined to a noun ("snow covered hill").
COLOR_WORDS = _words("color colour colored coloured")
COMPOUND_PARTICIPLES = _words("covered filled lined capped topped colored coloured shaped sized")

# Tagged as nouns, but they name nothing.
PRONOUNS = _words(
    "something someone somebody anything anyone anybody everything everyone everybody nothing none others"
    " ones etc etcetera bit past"
)
# Never nouns in a description, whatever the tag; those of PLURAL_VERBS only after a plural ("men stand").
VERBS = _words(
    "see observe find notice is are was were has have look looks seems consists there here like contains"
    " includes describes shows depicts"
)
PLURAL_VERBS = _words("stand sit walk play rest look watch ride run hang wait work line fly move float dance")
# Before a noun these may modify it.
PARTICIPLES = _words(
    "standing sitting wearing holding walking riding placed parked kept looking carrying smiling hanging"
    " playing covered attached having containing lying posing talking using moving seen arranged"
)

BEFORE_PARTICIPLES = _words("see observe with of half")  # "with parked cars", "half eaten pizza": modifiers
# With an object, so that no modifier at the start of a caption: "holding umbrella", unlike "smiling woman".
TRANSITIVE = _words(
    "wearing holding carrying riding using having containing eating playing reading drinking pulling"
    " pushing throwing catching hitting feeding cutting watching facing touching looking showing taking"
    " sitting"
)

# Part of the noun that follows: plural words ("sports car"), and gerunds ("dining table").
PLURAL_MODIFIERS = _words("sports clothes goods glasses windows stairs news")
NOUN_GERUNDS = _words(
    "dining living swimming parking rocking ironing frying chopping dressing sliding skating shopping"
)

PREPOSITIONS = _words("in on at to from towards toward near with of through")
# Not noun phrases: "in front of", "on top of", "side by side".
ADVERBIAL_PHRASES: frozenset[tuple[str, ...]] = frozenset(
    {
        ("in", "front"),
        ("on", "top", "of"),
        ("in", "back", "of"),
        ("side", "by"),
        ("by", "side"),
        ("face", "to"),
    }
)

# Words that name nothing, not even as the only word of a caption.
FUNCTION_WORDS = _words(
    "i me we us you he him she it they them myself itself who whom which what where when why how and or"
    " but nor not if then than as of in on at to from with by for into onto over under near is are was"
    " were be been am has have had do does did will would should could there here very so too also"
    " please yes etc"
)
ALWAYS_NOUNS = _words("close-up closeup")
ADJECTIVES_OR_NOUNS = _words("orange light adult female male human")  # nouns where they stand alone in a list
# Asked of us at the start of a caption ("find dogs"), unlike "stop sign".
REQUESTS = _words(
    "find show segment detect locate select highlight mark count give point get search identify look"
    " see click draw outline tell let go come try make put take want need describe describes"
)
COORDINATIONS = _words(", ; and or & /")
# Between clauses: each may have a verb of its own.
CLAUSE_WORDS = _words("and or but while as who which that where when")
# Compounds whose first word looks like a verb, and words that seldom end a phrase.
VERB_COMPOUNDS = frozenset({("stop", "sign"), ("stop", "signs"), ("stop", "light"), ("stop", "lights")})
COMPOUND_STARTS = _words("tennis baseball soccer traffic parking dining washing")

# Living beings, which do things, and what they do: "a dog barks" is no phrase, "a dog bowl" is one.
BEINGS = _words(
    "man woman boy girl child kid person lady gentleman guy baby toddler player skier surfer rider"
    " driver cyclist skateboarder snowboarder batter catcher pitcher umpire referee bride groom chef"
    " cook waiter waitress policeman officer fireman firefighter soldier worker farmer teacher student"
    " doctor nurse dancer singer musician guitarist drummer runner swimmer climber golfer fisherman"
    " photographer vendor tourist pedestrian crowd audience team family couple mother father mom dad"
    " sister brother son daughter friend someone dog puppy cat kitten horse pony cow calf bull sheep"
    " lamb goat pig elephant zebra giraffe bear panda lion tiger leopard monkey gorilla ape deer fox"
    " wolf rabbit squirrel mouse bird duck goose swan chicken rooster eagle hawk owl parrot pigeon"
    " seagull penguin ostrich fish shark whale dolphin seal turtle frog snake animal bee butterfly"
)
ACTIONS = _words(
    "bark watch dance wave cheer walk run jump ride play sit stand rest cook drink kick race swing surf"
    " ski fly wait paint cut serve pass hang roll fish show hold look smile laugh talk sleep climb hug"
    " kiss pose lean face gaze stare hit throw pitch tackle punch graze rest lie bathe swim skate row"
    " march shop work relax exercise stretch shout yell sing clap point reach step turn slide fall dive"
    " crawl fight chase"
)


def _third_person(verb: str) -> str:
    if verb == "fly":
        return "flies"
    return verb + ("es" if verb.endswith(("ch", "sh", "ss")) else "s")


ACTIONS_SINGULAR = frozenset(map(_third_person, ACTIONS))
