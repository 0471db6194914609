"""Whether a caption is English: by its script, and for Latin letters by common words of each language."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from ppmn.phrases import word_lists as words
from ppmn.phrases.tagger import feature_hash, load_tagger, normalize


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The first word of a letter's Unicode name, and what a text in such letters is called.
_SCRIPTS = {
    "CYRILLIC": "Cyrillic script", "GREEK": "Greek", "ARABIC": "Arabic script", "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari script", "BENGALI": "Bengali", "GURMUKHI": "Punjabi", "GUJARATI": "Gujarati",
    "TAMIL": "Tamil", "TELUGU": "Telugu", "KANNADA": "Kannada", "MALAYALAM": "Malayalam",
    "SINHALA": "Sinhala", "THAI": "Thai", "LAO": "Lao", "MYANMAR": "Burmese", "KHMER": "Khmer",
    "TIBETAN": "Tibetan", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian", "ETHIOPIC": "Ethiopic script",
    "HANGUL": "Korean", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "CJK": "Chinese",
}  # fmt: skip
# Common words of captions in each language that are no English words.
_COMMON_WORDS = {
    "German": _words(
        "der das ein eine einen einem einer eines und ist sind mit auf dem zum zur zwei drei neben vor"
        " hinter unter über zwischen auch nicht steht sitzt liegt trägt einige viele mehrere kleiner"
        " großer große roter rote rotes hund katze frau junge mädchen kinder leute menschen haus"
        " baum bäume straße wiese tisch stuhl himmel fahrrad pferd vogel"
    ),
    "French": _words(
        "un une aux dans avec sur sous sont près devant derrière deux trois qui cette ces leur homme"
        " femme garçon fille enfant enfants chien chienne cheval oiseau voiture rue maison arbre arbres"
        " ciel herbe plage blanche bleu assis debout"
    ),
    "Spanish": _words(
        "un una unos unas está están sobre tres junto cerca detrás delante hombre mujer niño niña niños"
        " perro gato caballo pájaro coche calle árbol árboles cielo playa silla rojo roja blanco blanca"
        " azul gente"
    ),
    "Italian": _words(
        "un una gli della nel nella sul sulla che tre vicino davanti dietro sono uomo donna ragazzo"
        " ragazza bambino bambina bambini gatto cavallo uccello macchina strada albero alberi cielo"
        " spiaggia tavolo sedia rosso rossa bianco bianca persone"
    ),
    "Portuguese": _words(
        "um uma uns umas das na nas em está estão sobre ao dois duas três perto atrás frente homem"
        " mulher menino menina criança crianças cachorro cão gato cavalo pássaro rua árvore árvores céu"
        " praia cadeira vermelho vermelha branco pessoas"
    ),
    "Dutch": _words(
        "een het op naast voor achter onder zijn staat ligt draagt twee drie bij hond vrouw jongen"
        " meisje kinderen mensen huis bomen straat tafel stoel lucht fiets paard vogel witte zwarte"
        " grote"
    ),
    "Swedish": _words(
        "ett och på med är som bredvid framför bakom två tre hund katt kvinna pojke flicka människor"
        " hus träd gatan bord stol himmel cykel häst fågel röd vit svart"
    ),
    "Danish or Norwegian": _words(
        "og på med som ved foran bagved bak hund kvinde kvinne dreng gutt pige jente børn mennesker hus"
        " træ trær gaden gata bord stol himmel cykel sykkel hest fugl rød hvid hvit svart"
    ),
    "Finnish": _words(
        "ja kaksi kolme mies nainen poika tyttö lapsi koira kissa hevonen lintu talo puu puita pöydällä"
        " tuoli taivas nurmikolla vieressä edessä takana istuu seisoo punainen valkoinen musta"
    ),
    "Polish": _words(
        "jest są się na przed obok dwa dwie trzy mężczyzna kobieta chłopiec dziewczyna dziewczynka"
        " dziecko dzieci ludzie kot koń ptak samochód ulica ulicy dom drzewo drzewa niebo stół krzesło"
        " trawie czerwony biały czarny"
    ),
    "Czech": _words(
        "je jsou na před vedle dva dvě tři muž žena chlapec dívka dítě děti lidé pes kočka kůň pták"
        " ulice ulici dům strom stromy nebe stůl židle trávě červený bílý černý"
    ),
    "Romanian": _words(
        "un și lângă este sunt două trei bărbat femeie băiat fată copil copii oameni câine pisică"
        " pisica pasăre mașină stradă casă copac copaci masă scaun iarbă roșu roșie"
    ),
    "Hungarian": _words(
        "egy és vannak mellett előtt mögött alatt két három férfi nő fiú lány gyerek gyerekek kutya"
        " macska ló madár autó utca utcán ház fák ég asztal szék fűben piros fehér fekete"
    ),
    "Turkish": _words(
        "bir ile üzerinde yanında önünde arkasında altında iki üç kadın çocuk çocuklar köpek kedi kuş"
        " araba sokakta ağaç ağaçlar gökyüzü sandalye kırmızı beyaz siyah"
    ),
    "Indonesian or Malay": _words(
        "seorang seekor sebuah yang dengan sedang itu ini dua tiga atas bawah dekat depan belakang"
        " laki-laki pria perempuan wanita anak anjing kucing kuda burung mobil jalan rumah pohon meja"
        " kursi merah putih hitam"
    ),
    "Vietnamese": _words(
        "một hai chiếc cái và của trên dưới trong với người đàn ông phụ nữ chó mèo ngựa chim nhà cây"
        " bàn ghế đường đang đứng ngồi đỏ trắng"
    ),
}
# These are names, loans or abbreviations in English too ("la piñata", "Los Angeles"): little evidence alone.
_WEAK_WORDS = {
    "German": _words("die den des von im am mann"),
    "French": _words("la le les de du des au en et est noir blanc l d"),
    "Spanish": _words("la el los las de del al en con y dos casa mesa"),
    "Italian": _words("la il lo le di da con e del uno"),
    "Portuguese": _words("o os a as do da de dos nos casa mesa carro com"),
    "Dutch": _words("de en van in kat"),
    "Swedish": _words("en den det i av"),
    "Danish or Norwegian": _words("en et er den det i af av kat mann"),
    "Polish": _words("i w z"),
    "Turkish": _words("ve masa"),
    "Romanian": _words("cu pe cal"),
    "Indonesian or Malay": _words("di orang"),
    "Vietnamese": _words("con"),
    "Finnish": _words("on auto"),
}
_LETTERS = {
    "German": frozenset("äöüß"),
    "French": frozenset("àâçéèêëîïôœùû"),
    "Spanish": frozenset("áéíóúñ"),
    "Italian": frozenset("àèéìòù"),
    "Portuguese": frozenset("ãõáâéêíóôúç"),
    "Dutch": frozenset("ëïé"),
    "Swedish": frozenset("åäö"),
    "Danish or Norwegian": frozenset("åæø"),
    "Finnish": frozenset("äö"),
    "Polish": frozenset("ąćęłńóśźż"),
    "Czech": frozenset("áčďéěíňóřšťúůýž"),
    "Romanian": frozenset("ăâîșşțţ"),
    "Hungarian": frozenset("áéíóöőúüű"),
    "Turkish": frozenset("çğışöü"),
    "Vietnamese": frozenset("ăâđêôơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"),
}
_ALL_COMMON_WORDS = frozenset().union(*_COMMON_WORDS.values())
_ENGLISH = words.FUNCTION_WORDS | words.DETERMINERS | words.AMOUNTS | words.BEINGS | words.PLACE_WORDS
_WEAK = 0.4  # of a common word's weight, so that two weak signs are not enough
_KNOWN = 0.5  # the weight of an English word that is neither a function word nor in a list


def foreign_language(caption: str) -> str:
    """Name the language or script of a caption that is probably not English.

    Args:
        caption: A text of any length. One or two words count as English unless they are clearly not.

    Returns:
        The language ("German") or script ("Cyrillic script"); "" for a caption that may be English.

    Examples:
        >>> foreign_language("ein Hund auf der Wiese"), foreign_language("собака")
        ('German', 'Cyrillic script')
        >>> foreign_language("red sofa")
        ''
    """
    caption = unicodedata.normalize("NFC", caption)
    return _script(caption) or _latin_language(caption)


def language_warning(caption: str) -> str:
    """One sentence if a caption is probably not English, with what follows for its masks; else ""."""
    reason = not_english(caption)
    return f"{reason}, so its masks are withheld unless they are asked for" if reason else ""


def not_english(caption: str) -> str:
    """What language a caption seems to be in, if it is probably not English, else ""."""
    language = foreign_language(caption)
    known = f"{'in ' * language.endswith('script')}{language}"
    return f"the caption seems to be {known}; only English is supported" if language else ""


def _script(caption: str) -> str:
    """The script of most letters, unless it is Latin."""
    if caption.isascii():
        return ""
    names = Counter(unicodedata.name(c, "").split(" ")[0] for c in caption if c.isalpha())
    foreign = Counter({name: count for name, count in names.items() if name in _SCRIPTS})
    if 2 * foreign.total() <= names.total():
        return ""
    if foreign["HIRAGANA"] or foreign["KATAKANA"]:
        return "Japanese"
    return _SCRIPTS[foreign.most_common(1)[0][0]]


def _latin_language(caption: str) -> str:
    """The language whose common words outweigh the English ones."""
    found = re.findall(r"[^\W\d_]+", caption)
    if not caption.isupper():
        found = [word for word in found if len(word) == 1 or not word.isupper()]  # abbreviations: "UN"
    found = [word.lower() for word in found]
    scores = {name: _score(found, name) for name in _COMMON_WORDS}
    best = max(scores, key=lambda name: scores[name])
    english = sum(_english_weight(word) for word in found if word not in _ALL_COMMON_WORDS)
    return best if scores[best] >= 1 and scores[best] > english else ""


def _score(found: Sequence[str], name: str) -> float:
    common = sum(map(_COMMON_WORDS[name].__contains__, found))
    weak = sum(map(_WEAK_WORDS.get(name, frozenset()).__contains__, found))
    letters = not _LETTERS.get(name, frozenset()).isdisjoint("".join(found))
    return common + _WEAK * (weak + letters)


def _english_weight(word: str) -> float:
    if word in _ENGLISH:
        return 1
    return _KNOWN * (feature_hash(normalize(word)) in load_tagger().word)
