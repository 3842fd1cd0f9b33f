"""The words and phrases by which the rules recognise a reply that is no memory.

Patterns match text in lower case with straight apostrophes and "does not" for "doesn't".
"""

from __future__ import annotations

import re


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.DOTALL)


# Han, kana and Hangul: scripts whose words are not separated by spaces, or inflect so much that pairs compare better.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
WORD = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’][^\W_{CJK}]+)*")
IS_CJK = re.compile(rf"[{CJK}]")
SENTENCE = re.compile(r"(?<=[.!?;])\s+|[\n。！？；]+")
CLAUSE = re.compile(r"[.!?;:,()\n。！？；：，（）]+|\s[-–—]+\s|\s(?:as|because|since|and|so)\s", re.IGNORECASE)
GROUPED = re.compile(r"(?<=\d)[,.'’\u00a0\u202f ](?=\d{3}(?!\d))")
STOP = frozenset(
    """
    a about above again all also am an and any are as at be because been before being below both but by can could did do
    does doing down during each either else even ever few for from further get got had has have having he her here hers
    him his how however i i'd i'll i'm i've if in into is it it's its itself just let's like may me might more most much
    must my neither no nor not now of off on once only or other our ours out over own please same shall she should so
    some such than that that's the their theirs them then there there's therefore these they this those though through
    thus to too under until up upon us very was we we'll were what when where whether which while who whom whose why
    will with within without would yet you your yours
    """.split()  # noqa: SIM905
)
# Words with which a model speaks of its task. A sentence of them alone brings nothing of the document.
TASK_WORDS = frozenset(
    """
    accurate accurately acknowledged add added adding addition additional additions addressed already alter altered
    answer answering answers anything appears applicable appropriate available based brings capture captured captures
    capturing change changed changes chunk clear clearly complete comprehensive considered contain contained containing
    contains content context continue continued contribute contributes copied correct covered covers current currently
    data detail details directly discussed discussion disregarded document earlier edit edits empty enough everything
    evidence excerpt existing extra fact facts far final finding findings first found fully given good help helpful
    helps holds important include included includes info information input insight insights instruction instructions
    intact irrelevant keep keeping keeps kept key know known last lead leads leave leaving left material matter memory
    mention mentioned mentions modification modifications modified modify n na necessary need needed needs new next nil
    none note noted notes nothing null original page part passage pertinent piece pieces point points present presented
    previous previously prior provide provided provides providing question read reading ready refine refined refinement
    refinements reflect reflected relate related relates relevance relevant remain remaining remains remember repeat
    repeated replace require required requires retain retained return returned revise revised revision revisions rewrite
    say section sections seem seems segment serve serves specific specified stated stay stays still sufficient
    sufficiently suggested summary takeaways task text thing things topic unaltered unchanged understanding understood
    unnecessary unrelated update updated updates updating useful user valid view wait waiting warranted word work write
    written
    """.split()  # noqa: SIM905
)
EMPTY_WORDS = STOP | TASK_WORDS
_SECTION = r"(?:section|piece|chunk|text|passage|document|excerpt|context|part)"
_SORRY = r"^\W*(?:unfortunately,? )?"
_DO = (
    r"(?:help|assist|provide|comply|fulfil|produce|continue|proceed|answer|create|generate|write|summari|update|rewrite"
    r"|process|complete|do (?:that|this)|engage|discuss|access|support|find|see|read)"
)

STAYS = _any(  # the memory stays as it is; langchain#2504, #1460 and #8824 have eight such sentences
    r"\bno (?:\w+ )?(?:changes?|updates?|modifications?|revisions?|refinements?|edits?|additions?)\b",
    r"\b(?:memory|summary|notes?|answer)\b.*\b(?:remains?|stays?|is|are)\b.*"
    r"\b(?:unchanged|unaltered|same|sufficient|appropriate|accurate|relevant|comprehensive|complete|valid|intact)\b",
    r"\b(?:keep|keeping|retain|return|leave|leaving|repeat)\b.*\b(?:memory|summary|notes|answer)\b",
    r"\b(?:not|never) (?:need|require|warrant)\b.*\b(?:chang|updat|modif|revis|refine|edit|addition)",
    r"\bnot (?:necessary|needed|required)\b",
    r"\bunnecessary\b",
    r"\bnot (?:been )?(?:changed|updated|modified|altered)\b",
    r"\bnothing (?:\w+ )?to (?:add|update|change|note|remember|modify|revise)\b",
    r"\b(?:remains?|stays?) (?:the same|as (?:it )?(?:is|was)|unchanged)\b",
    r"^\W*unchanged\W*$",
    r"\b(?:same as|as (?:stated|noted|mentioned)|see) (?:\w+ )*(?:above|before|previous|previously|memory|earlier)\b",
)
FOREIGN_STAYS = _any(
    r"(?:无需|無需|不需要|没有必要|不必).{0,8}(?:更新|修改|改变|变更|更改)",
    r"(?:记忆|記憶|摘要|内容).{0,8}(?:不变|不變|没有变化|无变化)",
    r"(?:メモリ|記憶|要約).{0,10}(?:変更|更新).{0,6}(?:ありません|不要|なし)",
    r"keine (?:\w+ )?(?:änderung|aktualisierung|ergänzung)(?:en)?\b",
    r"(?:gedächtnis|zusammenfassung) bleibt (?:\w+ )?(?:unverändert|gleich)",
    r"aucune? (?:changement|modification|mise à jour)\b",
    r"mémoire (?:reste|demeure) inchangée",
    r"\b(?:no se (?:necesitan|requieren)|sin|no hay) (?:cambios|actualizaciones)\b",
    r"memoria (?:permanece|sigue) (?:igual|sin)",
)
BRINGS_NOTHING = _any(  # the chunk has nothing for the question; "(nothing)" is nanobot#5694's own word for it
    r"\bno (?:\w+ ){0,3}(?:information|info|details?|facts?|content|data|evidence|mention|answers?|leads?)\b",
    r"\bnot (?:\w+ )?(?:contain|provide|mention|include|have|add|bring|offer|contribute|help|address|answer|relate)\b",
    r"\bnothing (?:new|relevant|useful|here|about|in|found|to)\b",
    r"\b(?:irrelevant|unrelated|disregarded)\b",
    r"\bnot (?:relevant|related|mentioned|found|provided|specified|stated)\b",
    r"^\W*(?:n/?a|none|nothing|null|nil|empty)\W*$",
)
FOREIGN_NOTHING = _any(
    r"^\W*(?:本段|该段|这段|此段|本节|文本|文中)?.{0,4}(?:没有|无|不包含|未提供)(?:任何)?"
    r"(?:新的?|相关的?|更多的?|有用的?)?(?:信息|内容)\W*$"
)
NOTHING_RELEVANT = _any(
    r"\b(?:no|any) (?:\w+ ){0,2}(?:new|relevant|useful|additional|pertinent|further)\b",
    r"\bnothing (?:new|relevant|useful)\b",
    r"\b(?:irrelevant|unrelated|disregarded)\b",
    r"\bnot (?:relevant|related)\b",
)
OF_TOPIC = _any(
    rf"^\W*(?:the|this|that|it)\b(?: \w+){{0,3}}? ?{_SECTION}? "
    r"(?:discusses|is about|focuses on|covers|deals with|talks about|continues|describes)\b"
)
OF_SECTION = _any(rf"^\W*(?:the|this)\b(?: \w+){{0,3}}? {_SECTION}\b")
REFUSAL = _any(  # companion-emergence#77, hermes-agent#118363; the last kind is smart-second-brain#435
    _SORRY + r"(?:(?:i'm|i am|we are|we're) (?:really |very |so )?sorry|sorry|i apologi[sz]e|my apologies)\b",
    _SORRY + rf"i (?:cannot|can not|can't|won't|will not|do not want to|am (?:un|not )able to) {_DO}",
    _SORRY + r"i'm (?:unable to|not able to|not going to|not comfortable)\b",
    _SORRY + r"i (?:(?:must|have to) decline|do not (?:have|see) (?:access|any|the|enough))\b",
    r"^\W*as an? (?:ai|artificial|large language|language) ",
    rf"^\W*(?:please |could you |can you )(?:please )?(?:provide|share|paste|upload)\b.{{0,30}}\b{_SECTION}\b",
    rf"^\W*it (?:seems|looks like|appears)(?: that)? (?:you |there is no |no )(?:\w+ ){{0,6}}{_SECTION}\b",
    r"^\W*(?:非常|很|十分)?(?:抱歉|对不起|對不起).{0,12}(?:无法|無法|不能|没有|不会)",
    r"^\W*作为(?:一个|一名)?(?:ai|人工智能|语言模型)",
    r"^\W*我(?:无法|不能)(?:提供|回答|协助|帮助|完成|满足|处理)",
    r"^\W*申し訳(?:ありません|ございません)",
    r"^\W*(?:es tut mir leid|leider kann ich|(?:je suis )?désolée?|lo siento)\b",
    r"^\W*(?:error|failed)\b.{0,20}\b(?:generating|generate|summar)",
)
ACKNOWLEDGEMENT = _any(  # koboldcpp#213 stored "Certainly!"
    r"^\W*(?:ok(?:ay)?|understood|done|certainly|sure(?: thing)?|of course|absolutely|got it|ack(?:nowledged)?)\b",
    r"^\W*(?:noted|thanks?(?: you)?|i understand|i see|yes|ready|roger|will do|verstanden|compris|entendido)\b",
    r"^\W*(?:好的|明白了?|收到|了解(?:しました)?)",
    r"^\W*i(?: have|'ve| will|'ll| am|'m) (?:now )?(?:read|reading|review|updat|continue|ready|wait|remember|keep)",
)
COMMAND = _any(r"\W*(?:ack[\W_]*\d+|update|keep|skip|pass|next|continue)\W*")  # "ACK_21" of kimi-code#3684
POLITE_WORDS = EMPTY_WORDS | frozenset(
    """
    absolutely ack await awaiting certainly compris course done entendido glad go happy noted ok okay proceed review
    reviewed roger sure thank thanks understand verstanden yes した しま まし 了解 好的 收到 明白 白了 解し
    """.split()  # noqa: SIM905
)
TOOL_CALL = re.compile(  # open-webui#29308
    r"^\W*(?:<\|?(?:tool_call|function_call|python_tag|tool_calls_begin|function)\b|\[TOOL_CALLS\]|functions\.\w+\()"
    r'|^\s*(?:```\w*\s*)?\{\s*"(?:name|function|tool|tool_call)"\s*:.*"(?:arguments|parameters|input)"\s*:',
    re.IGNORECASE | re.DOTALL,
)
