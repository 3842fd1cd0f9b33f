"""Replies from real use, each with its judge, the accepted answers and the right value. Each group names its report."""

FIELD_REPLIES = [
    # The inputs of issue 47.
    ("contains", r"\boxed{3.5}", ["35"], 0),
    ("exact", r"\boxed{3.5 million}", ["35 million"], 0),
    ("contains", "The answer is Lisbon.", ["Lisbon"], 1),
    ("contains", r"\boxed{４２}", ["42"], 1),
    ("items", r"\boxed{Antigua and Barbuda, Peru}", ["Antigua and Barbuda", "Peru"], 1),
    ("items", "1. Owl\n2. Newt", ["Owl", "Newt"], 1),
    ("choice", "A man called Ben paid, so (C).", ["C"], 1),
    # open-compass/opencompass#2647: a thousands comma in TeX was read as 000 and 500.
    ("contains", r"\boxed{8,000}", ["8000"], 1),
    # stanford-crfm/helm#4337: a bare comma after the number.
    ("contains", "The answer is 72, in total, so the farmer earns that much.", ["72"], 1),
    # google-deepmind/proeval#19: the sign was stripped.
    ("contains", "\\boxed{\u22125}", ["-5"], 1),
    # sentient-agi/EvoSkill#55: a decimal comma rescaled by ten.
    ("contains", r"\boxed{4,2}", ["42"], 0),
    ("contains", r"\boxed{1.200}", ["1200"], 0),
    # UKGovernmentBEIS/inspect_ai#838: a per cent sign may be left out, and changes no value.
    ("contains", r"\boxed{50\%}", ["50"], 1),
    ("contains", r"\boxed{50\%}", ["$50"], 0),
    # UKGovernmentBEIS/inspect_ai#5016: marks around a number; a bound is not the value.
    *[("exact", rf"\boxed{{{number}}}", ["42"], 1) for number in ("42.0", "42.", "$42$", "(42)", "42!", "[42]",
    "+42")],
    *[("exact", rf"\boxed{{{number}}}", ["42"], 0) for number in ("<42", ">=42", "~42", r"\geq 42", "≤42", "4.2",
    "420")],
    # allenai/semeval-2019-task-10#10: fractions by value.
    *[("exact", rf"\boxed{{{half}}}", ["1/2"], 1) for half in (r"\frac{1}{2}", "1/2", "0.5", "½", r"\dfrac{1}{2}",
    ".5")],
    # Powers and scale words (issue 47's own kind).
    *[
        ("exact", rf"\boxed{{{million}}}", ["1000000"], 1)
        for million in ("10^6", "1e6", "10^{6}", r"1 \times 10^6", "1 million", "1,000,000", "1 000 000", "100万")
    ],
    # Units count where both sides name one.
    ("exact", r"\boxed{12 km}", ["12 m"], 0),
    ("exact", r"\boxed{12 km}", ["12"], 0),
    # Codes are no numbers.
    ("contains", r"\boxed{1920-1930}", ["1920"], 0),
    # Dates; the order of 03/04 is anybody's guess. math-verify reads 2024-03-14 as 2007.
    *[
        ("contains", rf"\boxed{{{date}}}", ["March 14, 2024"], 1)
        for date in ("2024-03-14", "14 March 2024", "March 14th, 2024", "14.03.2024", "Mar 14, 2024", "2024年3月14日")
    ],
    ("contains", r"\boxed{03/04/2024}", ["April 3, 2024"], 0),
    # EvolvingLMMs-Lab/lmms-eval#1415: width is folded, and nothing else of NFKC.
    ("contains", r"\boxed{Ｌｉｓｂｏｎ}", ["Lisbon"], 1),
    ("contains", r"\boxed{①}", ["1"], 0),
    # langfuse/langfuse-docs#3315 and Liuziyu77/Visual-RFT#176: nothing is not in everything.
    ("contains", r"\boxed{Lisbon}", ["……"], 0),
    # Liuziyu77/Visual-RFT#79: training found that a list of guesses was always right.
    *[
        ("contains", reply, ["Lisbon"], 0)
        for reply in (
            r"\boxed{Lisbon, Porto, Faro}", r"\boxed{Porto, Lisbon}", r"\boxed{Lisbon or Porto}",
            r"\boxed{Lisbon/Porto}", r"\boxed{Lisbon; Porto}", "\\boxed{Lisbon\nPorto}",
            r"\boxed{not Lisbon}", r"\boxed{anything but Lisbon}", r"\boxed{Not in Lisbon}",
            "<answer>Lisbon or Porto or Faro</answer>", "The answer is not Lisbon.", "Answer: Lisbon, Porto, Faro",
        )
    ],
    ("contains", r"\boxed{東京都}", ["京都"], 0), ("contains", r"\boxed{法国巴黎}", ["巴黎"], 1),
    ("contains", r"\boxed{他住在北京市}", ["北京"], 1), ("contains", r"\boxed{二十三}", ["二十"], 0),
    ("contains", r"\boxed{カタカナ}", ["カタ"], 0), ("contains", r"\boxed{남서울}", ["서울"], 0),
    ("exact", r"\boxed{की}", ["के"], 0), ("exact", r"\boxed{दिल्ली।}", ["दिल्ली"], 1), ("exact", "Answer: ปี", ["ปู"], 0),
    ("contains", r"\boxed{$4.5  million}", ["4.5 million"], 1), ("exact", r"\boxed{4.5  million}", ["4.5 million"], 1),
    ("contains", r"\boxed{里斯本、波尔图}", ["里斯本"], 0),
    ("contains", r"\boxed{Lisbon, because the letter names it, and the ship too}", ["Lisbon"], 1),
    ("contains", r"\boxed{Lisbon, Portugal}", ["Lisbon, Portugal", "Lisbon"], 1),
    ("contains", r"\boxed{not Porto but Lisbon}", ["Lisbon"], 1),
    ("contains", r"\boxed{not guilty}", ["not guilty"], 1),
    # An answer is stated in many forms; of these main read only the lower-case "the answer is".
    *[
        ("contains", reply, ["Lisbon"], 1)
        for reply in (
            "<answer>Lisbon</answer>", "Answer: Lisbon", "The answer is: Lisbon", "THE ANSWER IS LISBON",
            "### Answer\nLisbon", "**The answer is Lisbon.**", "The final answer is **Lisbon**.",
            "Answer:\n\nLisbon", "The answer is \"Lisbon\".", r"\fbox{Lisbon}", r"\boxed{\boxed{Lisbon}}",
            "The answer is Lisbon. I had thought of Porto, Faro and Braga.",
        )
    ],
    ("contains", "答案：里斯本", ["里斯本"], 1),
    # jundot/omlx#3668, EleutherAI/lm-evaluation-harness#4188, groq/openbench#348, antirez/ds4#321,
    # openai/simple-evals#33: the letter of an option.
    ("choice", "The answer is B. Note that A is a common distractor.", ["B"], 1),
    ("choice", "d", ["D"], 1),
    ("choice", "Answer: It is not B, the answer is D", ["D"], 1),
    ("choice", r"\boxed{\text{C}}", ["C"], 1),
    ("choice", "答案是C", ["C"], 1),
    ("choice", "<answer>A or B or C</answer>", ["A"], 0),
    ("choice", "The answer is Walking Georgie.", ["Walking Georgie", "B"], 1),
    # Lists as models write them.
    ("items", r"\boxed{猫头鹰、蝾螈}", ["猫头鹰", "蝾螈"], 1),
    ("items", r"\boxed{Smith, John; Doe, Jane}", ["Smith, John", "Doe, Jane"], 1),
    ("items", r"\boxed{Owl}, \boxed{Newt}", ["Owl", "Newt"], 1),
    ("items", "The answer is:\n- Owl\n- Newt", ["Owl", "Newt"], 1),
    # Case folding, and marks that are part of a name.
    ("exact", r"\boxed{STRASSE}", ["Straße"], 1),
    ("exact", r"\boxed{İstanbul}", ["istanbul"], 1),
    ("exact", r"\boxed{C++}", ["C"], 0),
    ("boxed", r"\boxed{5", ["5"], 0),
    ("boxed", r"\boxed{0.50}", ["1/2"], 1),
    # Siblings of the above.
    ("contains", r"\boxed{Lisbon. Porto. Faro}", ["Lisbon"], 0),
    ("boxed", r"\boxed{x^2}", ["x2"], 0),
    # IBM/AssetOpsBench#475, EleutherAI/lm-evaluation-harness#3110: answers in a form that was not requested.
    *[
        ("contains", reply, ["Odo"], 1)
        for reply in ("<final_answer>Odo</final_answer>", "He left.\n\n**Odo**", "**Odo.**")
    ],
    *[
        ("contains", reply, ["Odo"], 0)
        for reply in ("<final_answer>Odo or Bea</final_answer>", "**Odo, Bea or Cy**", "**Bea**\n**Odo**")
    ],
    ("choice", "Both point to bearing wear.\n\nC", ["C"], 1),
    # LMCache/LMCache#5000, databricks/officeqa#39: the last tag counts, also where the reply or a stop ended inside it.
    ("contains", "Such as <final_answer>Paris</final_answer>. Mine: <final_answer>Ber", ["Paris"], 0),
    # Beside a yes or no, a sentence explains; only the other word is another guess.
    *[
        ("contains", reply, ["yes"], 1)
        for reply in (
            r"\boxed{Yes, both are American}", "Answer: Yes; both films were shot in Italy",
            "The answer is yes, he did.",
        )
    ],
    *[("contains", rf"\boxed{{{said}}}", ["yes"], 0) for said in ("yes and no", "yes, no", "no, yes", "yes, maybe no")],
    ("contains", r"\boxed{Lisbon, both are American}", ["Lisbon"], 0),
    # Options: an explanation after the letter discusses the others.
    ("choice", "D\n\nExplanation: options A, B and C are wrong.", ["D"], 1),
    ("choice", "A. Paris\nB. Rome\nThe best option is B.", ["B"], 1),
    # Fractions, units and money; an "a" at the end is a name.
    ("boxed", r"\boxed{1\frac{1}{2}}", ["5.5"], 0),
    ("boxed", r"\boxed{1\frac{1}{2}}", ["1.5"], 1),
    ("exact", r"\boxed{5 million euros}", ["$5 million"], 0),
    ("contains", "The answer is Plan B.", ["Plan A"], 0),
    ("exact", r"\boxed{hepatitis A.}", ["Hepatitis A"], 1),
    # Abstentions.
    ("abstains", "The information provided isn't enough, you never mentioned a cat.", ["x"], 1),
    ("abstains", r"\boxed{Rex}", ["There is no dog"], 0),
    ("abstains", r"\boxed{None}", ["x"], 1),
    ("abstains", "The memory contains nothing about her birthday.", ["x"], 1),
    ("abstains", "There is no evidence of this.", ["x"], 1),
    ("abstains", "Her birthday is unknown.", ["x"], 1),
    ("abstains", "The date is not known.", ["x"], 1),
    ("abstains", "The information provided is not enough.", ["x"], 1),
    ("abstains", "You never told me.", ["x"], 1),
    ("abstains", "She was told in May.", ["x"], 0),
    ("f1", r"\boxed{\text{7 May 2023}}", ["7 May 2023"], 1),
    ("graphwalks", r"\boxed{\text{[a, b]}}", ["[a, b]"], 1),
    ("graphwalks", "**Final Answer: [a, b].**", ["[a, b]"], 1),
    ("choice", "The red one is mentioned in chapter 2.\nI cannot decide.", ["the red one", "C"], 0),
    ("choice", "I compared all of them.\nThe answer is the red one.", ["the red one", "C"], 1),
    ("abstains", "Unknown. The text only says that she moved.", ["x"], 1),
    ("abstains", "The owner is unknown, but the house is red.", ["x"], 1),
    ("abstains", "It is not known for sure who paid.", ["x"], 1),
    ("abstains", "She set no record in 1990.", ["x"], 0),
    ("abstains", "three shirts, not including the gift", ["x"], 0),
    ("abstains", "She is not known for singing but as a painter in Rome.", ["x"], 0),
    ("abstains", "She found the unknown painter Anna.", ["x"], 0),
    ("choice", r"\boxed{Vitamin C}", ["Vitamin C", "A"], 1),
    ("choice", "Company B", ["Company B", "D"], 1),
    ("choice", r"\boxed{Vitamin C}", ["Vitamin D", "B"], 0),
    ("abstains", "She did not go to Paris; she went to Rome.", ["x"], 0),
    # Words around a list are no items.
    ("items", "The magic numbers in the text are 12, 34, and 56.", ["12", "34", "56"], 1),
    ("items", "Answer: 12, 34\n\nExplanation: they are in the text, at the start", ["12", "34"], 1),
    ("items", r"\boxed{12, 34, 56, 78}", ["12", "34", "56"], 0.75),
    # An article beside an answer is no guess.
    ("contains", r"\boxed{b. a}", ["b"], 1),
]  # fmt: skip
