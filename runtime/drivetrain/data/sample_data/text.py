"""Sample texts: Spanish maintenance reports with failure mode, cause and priority; long-tailed lengths and classes.

Reports are made of sentences. Some express the mode, the cause or the priority in one of several ways, the others are
filler as technicians write it. In phrases `{parte}`, `{lugar}` and `{numero}` are placeholders. Some labels are wrong or not
expressed in the text, so no model can be perfect.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Phrases = dict[str, list[str]]
"""Phrases that express each class; classes in order of frequency, most frequent first."""

MODES: Phrases = {
    "fuga": [
        "se observa goteo continuo de aceite en {parte}",
        "pérdida de líquido por la junta de {parte}",
        "charco bajo {parte} en {lugar}",
        "escape de vapor audible junto a {parte}",
        "el nivel del depósito baja solo",
    ],
    "vibración": [
        "{parte} tiembla al pasar de {numero} revoluciones",
        "oscilación fuerte medida en {parte}",
        "golpeteo rítmico y temblor en la bancada",
        "los pernos de {parte} bailan en marcha",
        "lectura de {numero} micras en el acelerómetro",
    ],
    "sobrecalentamiento": [
        "{parte} alcanza {numero} grados y dispara la alarma térmica",
        "carcasa ardiendo al tacto en {lugar}",
        "huele a quemado cerca de {parte}",
        "la cámara térmica muestra un punto rojo en {parte}",
        "se detuvo por exceso de temperatura",
    ],
    "atasco": [
        "{parte} está bloqueada y no gira",
        "acumulación de material que tapa {parte}",
        "la cinta se frena por producto trabado",
        "el filtro de {parte} quedó obstruido",
        "no pasa caudal por la línea",
    ],
    "rotura": [
        "{parte} apareció partida en dos",
        "grieta visible de {numero} milímetros en {parte}",
        "el eje se quebró durante el arranque",
        "diente desprendido en el engranaje de {lugar}",
        "fractura limpia junto a la soldadura",
    ],
    "fallo eléctrico": [
        "salta el diferencial al energizar {parte}",
        "sin tensión en bornes de {parte}",
        "el variador marca error de fase",
        "cortocircuito en la caja de conexiones de {lugar}",
        "el contactor chispea y no retiene",
    ],
    "ruido": [
        "chirrido agudo al arrancar {parte}",
        "se escucha un zumbido extraño en {lugar}",
        "rechina metal contra metal en {parte}",
        "silbido constante desde {parte}",
        "crujido seco en cada ciclo",
    ],
}

CAUSES: Phrases = {
    "desgaste": [
        "pieza con {numero} mil horas, fin de vida útil",
        "pista del rodamiento picada por el uso",
        "holgura fuera de tolerancia por los años",
        "retén endurecido y gastado",
        "dientes afilados por el roce",
    ],
    "falta de lubricación": [
        "los puntos de engrase estaban secos",
        "nadie rellenó la grasera desde hace {numero} días",
        "aceite por debajo del mínimo en el visor",
        "la bomba de engrase automático no dosifica",
        "rodamiento sin película de grasa",
    ],
    "desalineación": [
        "acople corrido {numero} centésimas respecto del motor",
        "poleas fuera de plano según el láser",
        "la base cedió y torció el conjunto",
        "ejes no concéntricos tras el último montaje",
        "correa que trabaja de costado",
    ],
    "contaminación": [
        "entró polvo de cemento por el respiradero",
        "agua mezclada con el aceite, color lechoso",
        "virutas metálicas en el cárter",
        "suciedad abrasiva dentro de {parte}",
        "restos de producto en el circuito",
    ],
    "sobrecarga": [
        "se alimentó el doble de lo permitido en el turno",
        "corriente de {numero} amperes, por encima de placa",
        "la tolva fue llenada hasta el borde",
        "arranques repetidos con carga completa",
        "se exigió más del nominal",
    ],
    "error de operación": [
        "el operario dejó la válvula cerrada",
        "se arrancó sin seguir el procedimiento",
        "selector puesto en manual por descuido",
        "parámetro mal cargado en el panel",
        "maniobra indebida al cambiar de turno",
    ],
    "corrosión": [
        "óxido profundo en la superficie de {parte}",
        "picaduras por ambiente salino",
        "la chapa se deshace por herrumbre",
        "ataque químico del ácido sobre el metal",
        "bulones comidos por la humedad",
    ],
    "defecto de montaje": [
        "tornillos sin el par de apriete indicado",
        "junta colocada al revés en la última intervención",
        "faltaba una arandela en {parte}",
        "cableado intercambiado tras el reemplazo",
        "repuesto instalado de otra medida",
    ],
}

PRIORITIES: Phrases = {
    "media": [
        "programar para la próxima parada",
        "sigue en marcha con seguimiento diario",
        "conviene intervenir esta semana",
        "queda operativo con restricción de velocidad",
    ],
    "baja": [
        "sin impacto en la producción",
        "puede esperar al mantenimiento anual",
        "se deja anotado para cuando haya tiempo",
        "equipo de reserva, no corre prisa",
    ],
    "alta": [
        "la línea trabaja a mitad de ritmo",
        "se pide intervención dentro de las 24 horas",
        "hay riesgo de parar {lugar}",
        "afecta la entrega comprometida",
    ],
    "crítica": [
        "línea detenida por completo",
        "peligro para las personas, zona acordonada",
        "evacuado {lugar} por seguridad",
        "cada hora parada cuesta una fortuna, intervenir ya",
    ],
}

PARTS = [
    "la bomba principal",
    "el reductor",
    "el compresor",
    "la válvula de alivio",
    "el motor de la cinta",
    "el ventilador",
    "la prensa hidráulica",
    "el intercambiador",
    "la caldera",
    "el husillo",
    "el cojinete delantero",
    "la mezcladora",
    "el cilindro neumático",
    "la turbina auxiliar",
    "el agitador",
]
SITES = [
    "la sala de máquinas",
    "planta dos",
    "el sector de envasado",
    "la nave norte",
    "el foso",
    "el depósito de solventes",
    "la torre de enfriamiento",
    "el muelle de carga",
    "la línea cinco",
    "el taller",
]
DETAILS = [
    "aviso recibido del turno de noche",
    "se revisó {parte} en {lugar} sin más novedades",
    "orden de trabajo {numero} abierta",
    "participaron dos técnicos y un ayudante",
    "se tomaron fotos y se adjuntan al parte",
    "la visita duró {numero} minutos",
    "falta repuesto en almacén, consultado a compras",
    "se limpió la zona antes de revisar",
    "el supervisor de {lugar} fue informado por radio",
    "equipo identificado con la etiqueta {numero}",
    "se midió aislamiento y continuidad",
    "queda pendiente la firma del responsable",
    "historial consultado: última intervención hace {numero} días",
    "se bloqueó y etiquetó según norma",
    "acceso difícil, hizo falta andamio",
    "se coordinó con producción la ventana de trabajo",
    "el cliente interno pide copia del informe",
    "temperatura ambiente de {numero} grados en {lugar}",
    "se probó {parte} en vacío durante {numero} minutos",
    "documentación guardada en la carpeta compartida",
    "al retirarse el personal quedó todo ordenado",
    "se reemplazó la tapa de inspección de {parte}",
    "la lectura anterior era de {numero} unidades",
    "el plano de {lugar} no coincide con lo instalado",
]
WRONG_SHARE = 0.05
"""Share of labels that are random, whatever the text says."""
UNEXPRESSED_SHARE = 0.08
"""Share of labels that the text does not express."""
MEDIAN_WORDS, WORDS_LOG_STD = 18, 1.08
"""Words in a report: median and standard deviation of the logarithm (log-normal distribution)."""
MIN_WORDS, MAX_WORDS = 5, 320
"""Words in the shortest and the longest report."""
CAPITALS_SHARE, SWAPPED_SHARE = 0.03, 0.25
"""Shares of texts in capital letters, and, of the others, with two letters swapped."""
FREQUENCY_RATIO = 0.72
"""Frequency of a class relative to the one before it."""
LABELS = {"modo": MODES, "causa": CAUSES, "prioridad": PRIORITIES}
BALANCED_ROWS = 16
"""Number of first rows that cycle through the classes: each of the 8 causes, which are most, occurs twice."""

Generator = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write reports.csv with the columns descripcion, modo, causa and prioridad; the same for the same seed.

    Args:
        folder: created if it does not exist.
        size: rows.
        seed: of all random numbers.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reports.csv"
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["descripcion", *LABELS])
        rows.writerows(_write_row(rng, number) for number in range(size))
    return [path]


def _write_row(rng: Generator, number: int) -> list[str]:
    """The text of a report, and its labels as they were written."""
    # The first rows contain every class twice, so that small data sets can be split, too.
    is_balanced = number < BALANCED_ROWS
    true_classes = [
        list(phrases)[number % len(phrases)] if is_balanced else _draw_class(rng, phrases)
        for phrases in LABELS.values()
    ]
    statements = [
        _choose(rng, phrases[name])
        for name, phrases in zip(true_classes, LABELS.values(), strict=True)
        if rng.random() >= UNEXPRESSED_SHARE
    ]
    written_labels = [
        _draw_class(rng, phrases) if not is_balanced and rng.random() < WRONG_SHARE else name
        for name, phrases in zip(true_classes, LABELS.values(), strict=True)
    ]
    return [_write_report(rng, statements), *written_labels]


def _draw_class(rng: Generator, phrases: Phrases) -> str:
    names = list(phrases)
    shares = np.cumsum(FREQUENCY_RATIO ** np.arange(len(names)))
    return names[int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))]


def _write_report(rng: Generator, statements: list[str]) -> str:
    """The informative sentences in random order, with filler around them until the report is long enough."""
    word_count = int(np.clip(rng.lognormal(np.log(MEDIAN_WORDS), WORDS_LOG_STD), MIN_WORDS, MAX_WORDS))
    sentences = [_fill_placeholders(rng, text) for text in statements]
    while sum(text.count(" ") + 1 for text in sentences) < word_count:
        sentences.insert(int(rng.integers(len(sentences) + 1)), _fill_placeholders(rng, _choose(rng, DETAILS)))
    return _add_typing_habits(rng, " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences))


def _fill_placeholders(rng: Generator, text: str) -> str:
    """Fill in a random part, place and number."""
    full = text.format(parte=_choose(rng, PARTS), lugar=_choose(rng, SITES), numero=rng.integers(2, 480))
    return full.replace(" de el ", " del ")  # Spanish contracts de + el


def _choose(rng: Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _add_typing_habits(rng: Generator, text: str) -> str:
    """Add typing habits: some texts in capital letters, some with two letters swapped."""
    if rng.random() < CAPITALS_SHARE:
        return text.upper()
    if rng.random() < SWAPPED_SHARE:
        position = int(rng.integers(len(text) - 1))
        text = f"{text[:position]}{text[position + 1]}{text[position]}{text[position + 2 :]}"
    return text
