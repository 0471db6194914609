"""Words that the rules for noun phrases treat by name rather than by tag."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DETERMINERS = _words("a an the this that these those my your his her its our their whose")
AMOUNTS = _words(
    "few many some several another all both each every either any no more most multiple numerous various"
    " much other one two three four five six seven eight nine ten eleven twelve dozen hundred"
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
SINGULAR_NOUNS = _words("lens gas canvas christmas news atlas 's s")

# Places in a picture: modifiers before a noun ("left side"), nouns after an article ("on the left").
PLACE_WORDS = _words(
    "left right top bottom middle center centre front back side sides corner corners end ends edge edges"
    " part portion backside bottom-left bottom-right top-left top-right"
)
DIRECTIONS = PLACE_WORDS | _words("upper lower extreme far opposite left-hand right-hand hand very")
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
