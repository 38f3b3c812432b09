"""Phrases of Spanish maintenance reports; `{parte}`, `{lugar}` and `{numero}` are placeholders."""

from __future__ import annotations

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
