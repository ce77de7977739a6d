package shop

// The shop's shelves. A category is one line: its products with a usual price in dollars, the styles
// they come in (with the word that a title uses where it is not the style's own), variants, what is
// bought with them, and what people type when they search for them.
var shelves = []shelf{
	{"Camping", "camping", []line{
		{"Tents", "two-person tent 140|family tent 240|dome tent 120|trekking tent 260|tarp shelter 60|one-person tent 130",
			"lightweight|heavy-duty|waterproof|compact|recycled", "moss green|sand|burnt orange|slate|sky blue|charcoal",
			"Sleeping bags|Headlamps|Camp stoves", "tent for two|tent for a rainy weekend"},
		{"Sleeping bags", "down sleeping bag 190|summer sleeping bag 70|mummy sleeping bag 150|sleeping mat 60|camp pillow " +
			"25|camp quilt 110", "lightweight|extra-soft|compact|recycled|waterproof", "navy|moss green|rust|graphite|teal|plum",
			"Tents|Headlamps", "warm sleeping bag|something to sleep on outdoors"},
		{"Camp stoves", "gas stove 45|camp cookset 60|titanium pot 55|spork set 14|camp kettle 25|fire grill 50",
			"lightweight|heavy-duty|compact|minimalist|recycled", "steel|matte black|for two|for four|with pouch|blue",
			"Tents|Coffee makers|Mugs", "cooking outdoors|small gas stove"},
		{"Headlamps", "headlamp 35|camp lantern 30|torch 24|string lights 22|solar lamp 28|clip light 16",
			"lightweight|waterproof|compact|heavy-duty|colourful", "black|yellow|red|rechargeable|warm white|with hook",
			"Tents|Bike lights|Running jackets", "light for the campsite|headlamp rechargeable"},
		{"Backpacks", "day pack 60|hiking pack 120|roll-top pack 90|hip bag 32|packing cubes 26|rain cover 18",
			"lightweight|waterproof|recycled|compact|vintage", "12 l|20 l|30 l|olive|navy|black", "Tents|Hydration|Water sports",
			"backpack for day trips|small backpack"},
	}},
	{"Running", "running", []line{
		{"Running shoes", "trail running shoes 110|road running shoes 105|racing flats 120|daily trainers 90|barefoot " +
			"shoes 95|track spikes 85", "lightweight|extra-soft|recycled|waterproof|colourful",
			"coral|black|white|lime|grey|royal blue", "Running socks|Running jackets|Hydration",
			"shoes for the marathon|trail shoes"},
		{"Running socks", "ankle socks 12|merino socks 17|compression socks 26|trail gaiters 24|toe socks 15|crew socks 11",
			"lightweight|extra-soft|recycled|colourful|minimalist", "pair|three pairs|black|grey|orange|blue",
			"Running shoes|Foam rollers", "socks against blisters|merino socks"},
		{"Running jackets", "wind jacket 80|rain jacket 120|running vest 60|running tights 55|running shorts 36|thermal " +
			"shirt 48", "lightweight|waterproof|recycled|colourful|compact", "black|neon yellow|burgundy|navy|teal|grey",
			"Running shoes|Headlamps|Hydration", "jacket for running in the rain|winter running"},
		{"Hydration", "soft flask 19|running belt 28|hydration vest 85|water bottle 18|bottle carrier 22|collapsible cup 9",
			"lightweight|compact|recycled|colourful|minimalist", "small|large|blue|clear|black|berry",
			"Running shoes|Running socks", "bottle for long runs|running belt"},
		{"Foam rollers", "foam roller 28|massage ball 12|yoga mat 45|resistance bands 18|yoga block 14|balance board 60",
			"extra-soft|heavy-duty|recycled|compact|colourful", "small|large|cork|blue|grey|set of two",
			"Running socks|Swimwear", "something for sore legs|yoga mat"},
	}},
	{"Coffee", "coffee at home", []line{
		{"Coffee beans", "Ethiopian coffee beans 14|espresso beans 12|decaf beans 13|breakfast blend 11|Colombian coffee " +
			"beans 14|single-estate beans 19",
			"organic|vintage:old-town|minimalist:no-nonsense|handmade:small-batch|extra-soft:mild",
			"250 g|500 g|1 kg|light roast|medium roast|dark roast", "Coffee grinders|Coffee makers|Mugs",
			"beans for espresso|light roast coffee"},
		{"Coffee grinders", "hand grinder 60|burr grinder 130|electric grinder 80|travel grinder 45|conical grinder " +
			"150|coffee mill 40", "compact|quiet|heavy-duty|vintage|minimalist", "steel|black|walnut|cream|red|copper",
			"Coffee beans|Coffee makers", "quiet coffee grinder|grinder for travel"},
		{"Coffee makers", "moka pot 34|French press 36|pour-over dripper 24|cold brew jug 30|espresso machine 260|vacuum " +
			"brewer 95", "compact|heavy-duty|vintage|minimalist|handmade", "for one|for four|glass|copper|black|steel",
			"Coffee beans|Coffee grinders|Kettles", "French press|coffee without a machine"},
		{"Kettles", "gooseneck kettle 70|electric kettle 55|stovetop kettle 48|travel kettle 36|tea kettle 44|thermo jug 32",
			"quiet|compact|vintage|minimalist|colourful", "0.8 l|1.2 l|cream|matte black|sage|red", "Coffee makers|Mugs|Teas",
			"kettle for pour-over|quiet kettle"},
	}},
	{"Baking", "baking", []line{
		{"Baking tins", "loaf tin 18|cake tin 24|muffin tray 22|tart ring 12|pie dish 20|baking sheet 19",
			"heavy-duty|vintage|minimalist|compact|recycled", "20 cm|26 cm|set of two|steel|blue enamel|non-stick",
			"Flours|Baking tools|Aprons", "tin for sourdough|cake tin"},
		{"Flours", "rye flour 5|spelt flour 6|bread mix 7|pancake mix 6|cocoa powder 8|vanilla sugar 4",
			"organic|handmade:stone-ground|minimalist:plain|extra-soft:extra-fine|vintage:old-grain",
			"500 g|1 kg|2 kg|in a tin|resealable bag|double pack", "Baking tins|Baking tools", "flour for bread|spelt flour"},
		{"Baking tools", "rolling pin 22|mixing bowl 26|dough scraper 9|proofing basket 24|piping set 16|whisk 12",
			"handmade|heavy-duty|compact|minimalist|colourful", "small|large|natural|white|sage|classic size",
			"Flours|Baking tins|Aprons", "basket for dough|rolling pin"},
		{"Aprons", "linen apron 36|oven gloves 22|tea towel set 18|bread bag 16|pot holder 12|bowl covers 20",
			"handmade|organic|extra-soft|colourful|minimalist", "striped|natural|navy|mustard|olive|checked",
			"Baking tins|Baking tools|Cookbooks", "apron with pockets|oven gloves"},
	}},
	{"Garden", "gardening", []line{
		{"Seeds", "tomato seeds 4|wildflower seeds 5|herb seeds 4|sunflower seeds 3|salad seeds 4|pumpkin seeds 4",
			"organic|colourful|vintage:heirloom|compact:balcony|minimalist:single-sort",
			"one packet|set of five|early|late|for pots|for bees", "Planters|Garden tools|Watering cans",
			"seeds for the balcony|wildflowers"},
		{"Garden tools", "hand trowel 16|pruning shears 34|garden fork 38|weeding knife 18|leaf rake 26|garden gloves 14",
			"handmade|heavy-duty|lightweight|recycled|compact", "small|large|green|red|long|left-handed",
			"Seeds|Planters|Watering cans", "shears for roses|garden gloves"},
		{"Planters", "terracotta pot 16|raised bed 85|hanging basket 24|window box 28|plant stand 42|seed tray 12",
			"handmade|recycled|minimalist|colourful|heavy-duty", "20 cm|40 cm|grey|terracotta|white|set of three",
			"Seeds|Watering cans|Bird feeders", "pots for the balcony|raised bed"},
		{"Watering cans", "watering can 32|plant mister 16|garden hose 42|drip set 34|rain barrel 80|hose reel 65",
			"vintage|lightweight|recycled|compact|colourful", "small|large|silver|green|copper|grey", "Planters|Seeds",
			"watering can indoor|hose for the garden"},
	}},
	{"Birds", "watching birds", []line{
		{"Bird feeders", "seed feeder 24|nesting box 28|bird bath 45|suet feeder 14|window feeder 18|hedgehog house 52",
			"handmade|recycled|heavy-duty|minimalist|colourful", "cedar|green|for small birds|with roof|slate|large",
			"Bird seed|Binoculars|Field guides", "bird house|feeder for the window"},
		{"Bird seed", "sunflower hearts 9|peanut mix 8|fat balls 7|mealworms 12|niger seed 10|winter mix 9",
			"organic|recycled:plastic-free|compact:small-pack|minimalist:no-waste|heavy-duty:bulk",
			"shelled|with berries|for robins|for finches|winter blend|summer blend", "Bird feeders",
			"food for birds in winter|sunflower hearts"},
		{"Binoculars", "8x42 binoculars 150|10x42 binoculars 180|spotting scope 300|folding binoculars 80|night scope " +
			"240|trail camera 110", "lightweight|waterproof|compact|heavy-duty|vintage", "black|green|sand|with case|grey|brown",
			"Field guides|Bird feeders|Backpacks", "binoculars for birds|spotting scope"},
		{"Field guides", "guide to water birds 22|guide to songbirds 21|butterfly guide 18|tree guide 19|guide to garden " +
			"birds 16|mushroom guide 20", "compact:pocket|colourful:illustrated|vintage:classic|waterproof|minimalist:plain",
			"paperback|hardback|new edition|spiral-bound|for children|with maps", "Binoculars|Bird feeders|Notebooks",
			"which bird is this|bird book"},
	}},
	{"Music", "making music", []line{
		{"Guitars", "ukulele 90|acoustic guitar 240|travel guitar 190|kalimba 34|mandolin 170|cajon 110",
			"handmade|compact|vintage|lightweight|colourful", "mahogany|spruce|sunburst|natural|for beginners|with bag",
			"Strings and picks|Songbooks|Headphones", "ukulele for beginners|small guitar"},
		{"Strings and picks", "nylon strings 12|steel strings 14|guitar picks 6|capo 16|clip-on tuner 18|guitar strap 26",
			"extra-soft|heavy-duty|colourful|minimalist|recycled", "red|for beginners|black|natural|set of two|brown",
			"Guitars|Songbooks", "strings for ukulele|tuner"},
		{"Headphones", "over-ear headphones 140|in-ear headphones 70|studio headphones 150|sleep headphones 55|small " +
			"speaker 65|open-back headphones 180", "quiet:noise-cancelling|compact|extra-soft|vintage|lightweight",
			"black|white|sand|wireless|wired|forest", "Guitars|Songbooks|Keyboards",
			"headphones for practising|quiet headphones"},
		{"Songbooks", "folk songbook 18|blues songbook 19|piano album 22|chord book 14|music theory book 24|fingerpicking " +
			"book 20", "compact:pocket|vintage:classic|colourful:illustrated|minimalist:plain|extra-soft:easy",
			"volume 1|volume 2|with audio|large print|for two|spiral-bound", "Guitars|Strings and picks|Reading lights",
			"easy songs|chords for beginners"},
	}},
	{"Reading", "reading", []line{
		{"Mystery novels", "mystery set on a night train 12|lighthouse mystery 11|village mystery 11|heist novel 13|police " +
			"novel set in Lisbon 12|ghost story 12",
			"vintage:classic|compact:pocket|quiet:slow-burning|heavy-duty:hard-boiled|extra-soft:cosy",
			"paperback|hardback|book one|book two|large print|signed", "Travel writing|Reading lights|Teas",
			"mystery for the holidays|cosy crime"},
		{"Travel writing", "walking journal of the Alps 16|book of train journeys 17|sailing memoir 15|desert diary " +
			"14|island atlas 28|city essays 15",
			"vintage:classic|compact:pocket|colourful:illustrated|quiet:slow|minimalist:plain",
			"paperback|hardback|with maps|new edition|volume 1|volume 2", "Mystery novels|Notebooks|Backpacks",
			"books about travel|journeys by train"},
		{"Cookbooks", "soup cookbook 22|bread book 26|one-pot cookbook 22|cookbook of small plates 24|preserving book " +
			"20|cake book 24", "vintage:classic|organic|colourful:illustrated|minimalist:simple|compact:weeknight",
			"paperback|hardback|for two|for families|vegetarian|new edition", "Flours|Aprons|Mystery novels",
			"bread book|simple cookbook"},
		{"Reading lights", "book light 16|reading lamp 58|bedside lamp 44|floor lamp 95|table lantern 36|shelf light 28",
			"compact|quiet:dimmable|extra-soft:warm|minimalist|vintage", "brass|black|oak|cream|grey|green",
			"Mystery novels|Songbooks|Teas", "light for reading in bed|book light"},
	}},
	{"Games", "board games", []line{
		{"Board games", "trading game 38|farming game 42|cooperative game 44|railway game 48|word game 24|detective game 36",
			"compact:travel|vintage:classic|colourful|minimalist|heavy-duty:deluxe",
			"two players|family edition|expansion|four players|ages 8 up|solo mode", "Card games|Jigsaw puzzles|Mugs",
			"game for two|cooperative board game"},
		{"Jigsaw puzzles", "puzzle of the night sky 22|puzzle of a harbour 20|map puzzle 24|mountain puzzle 21|bird puzzle " +
			"19|library puzzle 22", "recycled|colourful|vintage|handmade:hand-cut|compact:mini",
			"500 pieces|1000 pieces|2000 pieces|wooden|round|for children", "Board games|Teas|Candles",
			"puzzle 1000 pieces|puzzle for winter"},
		{"Card games", "card game 14|trick-taking game 13|deck of cards 9|memory game 15|dice game 12|quiz box 22",
			"compact|colourful|vintage|minimalist|waterproof",
			"two players|party edition|linen finish|ages 6 up|for travel|expansion", "Board games|Backpacks",
			"card game for travel|cards"},
	}},
	{"Cycling", "cycling", []line{
		{"Bike lights", "front light 38|rear light 24|light set 52|helmet light 28|hub light 16|dynamo light 62",
			"compact|waterproof|lightweight|heavy-duty|minimalist", "USB|60 lux|black|red|silver|with mount",
			"Helmets|Bike tools", "bike light for commuting|light set"},
		{"Helmets", "city helmet 75|road helmet 110|gravel helmet 95|cycling cap 18|cycling gloves 26|cycling glasses 48",
			"lightweight|recycled|minimalist|colourful|vintage", "small|medium|large|white|sage|black", "Bike lights|Bike bags",
			"helmet for the city|gloves for cycling"},
		{"Bike tools", "multitool 28|mini pump 26|floor pump 46|tyre levers 8|tool roll 24|repair kit 16",
			"compact|heavy-duty|lightweight|recycled|quiet", "black|silver|with case|small|large|red", "Bike lights|Bike bags",
			"pump|repair kit for the road"},
		{"Bike bags", "pannier 75|handlebar bag 48|saddle bag 30|frame bag 44|backpack pannier 110|bike basket 38",
			"waterproof|recycled|compact|heavy-duty|handmade", "8 l|20 l|pair|black|tan|olive", "Bike tools|Helmets|Backpacks",
			"panniers for a tour|basket for shopping"},
	}},
	{"Calm home", "quiet evenings at home", []line{
		{"Candles", "beeswax candle 16|scented candle 22|pillar candle 14|tea lights 9|taper candles 12|jar candle 24",
			"handmade|organic|minimalist|colourful|vintage", "cedar|lavender|fig|set of six|unscented|rosemary",
			"Teas|Soaps|Blankets", "candle lavender|something that smells of wood"},
		{"Soaps", "olive soap 7|shampoo bar 10|hand cream 12|lip balm 6|sun cream 16|bath salt 9",
			"organic|handmade|extra-soft|minimalist:unscented|recycled:plastic-free",
			"lavender|citrus|rose|with aloe|travel size|family size", "Candles|Swimwear|Blankets",
			"soap without plastic|hand cream"},
		{"Teas", "green tea 12|herbal tea 9|black tea 10|tea sampler 18|chai blend 11|rooibos tea 9",
			"organic|handmade:hand-picked|minimalist:plain|extra-soft:mild|vintage:classic",
			"100 g|250 g|loose leaf|20 bags|with ginger|gift tin", "Mugs|Candles|Kettles", "tea for the evening|loose tea"},
		{"Mugs", "stoneware mug 22|enamel mug 16|travel mug 28|espresso cups 26|tea bowl 18|milk jug 20",
			"handmade|minimalist|colourful|heavy-duty|vintage", "set of two|blue|speckled|white|350 ml|ochre",
			"Teas|Coffee beans|Coffee makers", "handmade mug|mug for the office"},
		{"Blankets", "wool blanket 95|cotton throw 55|cushion cover 24|hot-water bottle 26|bath towel 32|slippers 44",
			"extra-soft|organic|handmade|colourful|recycled", "cream|grey|rust|herringbone|large|checked",
			"Candles|Teas|Reading lights", "warm blanket|slippers"},
	}},
	{"Desk", "keeping a tidy desk", []line{
		{"Notebooks", "dotted notebook 16|lined notebook 14|sketchbook 18|weekly planner 24|index cards 6|letter set 16",
			"recycled|minimalist|compact:pocket|handmade:hand-bound|colourful", "A5|A6|A4|black|linen|sage",
			"Pens|Field guides|Desk lamps", "notebook dotted|planner"},
		{"Pens", "fountain pen 38|gel pens 12|rollerball 18|fineliner 9|brush pens 16|mechanical pencil 14",
			"minimalist|vintage|colourful|recycled|handmade", "fine|medium|set of five|blue|black|green", "Notebooks",
			"fountain pen for beginners|good pencils"},
		{"Desk lamps", "desk lamp 70|monitor lamp 85|clamp lamp 55|desk mat 32|monitor stand 64|cable box 34",
			"minimalist|vintage|compact|heavy-duty|recycled", "oak|black|white|grey|large|small", "Notebooks|Keyboards|Pens",
			"lamp for the desk|tidy cables"},
		{"Keyboards", "mechanical keyboard 120|vertical mouse 55|number pad 38|trackball 62|travel keyboard 70|ergonomic " +
			"keyboard 140", "quiet|compact|minimalist|colourful|heavy-duty", "black|white|sand|grey|for left hands|with cable",
			"Desk lamps|Headphones", "quiet keyboard|mouse wireless"},
	}},
	{"Water", "swimming", []line{
		{"Swimwear", "swim goggles 22|swimming cap 12|swim shorts 36|swimsuit 48|swim towel 20|ear plugs 7",
			"recycled|colourful|lightweight|extra-soft|minimalist", "black|blue|grey|small|large|red", "Water sports|Soaps",
			"goggles that do not leak|swimsuit for training"},
		{"Water sports", "dry bag 28|paddle 75|swim buoy 34|snorkel set 42|inflatable board 320|wetsuit 160",
			"waterproof|lightweight|heavy-duty|compact|recycled", "small|large|yellow|orange|navy|black",
			"Swimwear|Backpacks|Headlamps", "dry bag|paddling gear"},
		{"Beach things", "beach towel 26|parasol 46|picnic blanket 38|cool bag 32|sun hat 28|beach game 16",
			"lightweight|waterproof|colourful|recycled|compact", "striped|sand|blue|large|for two|yellow",
			"Swimwear|Water sports|Soaps", "picnic blanket|shade for the beach"},
	}},
}

type shelf struct {
	name, hobby string
	lines       []line
}

type line struct {
	name, products, styles, variants, with, queries string
}

// styleNames are the tastes that cut across categories.
var styleNames = []string{"lightweight", "heavy-duty", "waterproof", "compact", "recycled", "extra-soft", "minimalist",
	"colourful", "vintage", "organic", "handmade", "quiet"}

// styleTastes say a taste in a profile.
var styleTastes = []string{"things that weigh little", "things that last", "things that survive bad weather",
	"small things that fit anywhere", "recycled materials", "anything soft and gentle", "plain, simple design",
	"bright colours", "old-fashioned things", "organic products", "things made by hand", "peace and quiet"}

// stylePraise and styleBlame are what reviews say of a style.
var stylePraise = [][]string{
	{"So light I forget it is there.", "Weighs next to nothing.", "Light enough to take everywhere."},
	{"Built to last.", "Took a beating and shows no scratch.", "Solid, I will never need another."},
	{"Kept dry in a downpour.", "Rain does not bother it at all.", "Survived a whole wet weekend."},
	{"Fits in any corner.", "Small, and still does everything.", "Takes no space at all."},
	{"Nice to know nothing new was wasted for it.", "You would not guess it had another life before.",
		"Good that it is recycled."},
	{"Wonderfully gentle.", "Soft from the first day.", "Kind to the skin and to my nerves."},
	{"No frills, just right.", "Simple and beautiful.", "Nothing on it that does not need to be there."},
	{"The colours make me smile.", "Bright and cheerful.", "Even prettier than in the pictures."},
	{"Looks as if my grandmother had owned it.", "Lovely old-fashioned feel.",
		"They rarely make them like this any more."},
	{"Clean and natural, you notice it.", "Glad that it is organic.", "Honest ingredients."},
	{"You can see that somebody made it with care.", "Every piece is a little different, I love that.", "Proper craft."},
	{"Peaceful, nobody in the house wakes up.", "Hardly makes itself noticed, perfect.", "So calm."},
}

var styleBlame = [][]string{
	{"So light that it feels flimsy.", "Too thin for me."},
	{"Far too heavy.", "A brick, honestly."},
	{"Stiff and rubbery.", "Sweaty material."},
	{"Too small to be useful.", "Smaller than I thought."},
	{"Smells of old plastic.", "The recycled material feels rough."},
	{"Too soft, no support.", "A bit bland."},
	{"So plain that it is dull.", "There is nothing to it."},
	{"Much too loud for my taste.", "The colours are garish."},
	{"Looks dated.", "Charming, but impractical."},
	{"Organic or not, I expected more.", "Pays for the label, if you ask me."},
	{"Uneven finish.", "Crooked on one side."},
	{"Quiet, but slow.", "A little sleepy."},
}

// verdicts open a review, by stars from one.
var verdicts = [][]string{
	{"Sent it back.", "A disappointment.", "I regret it.", "Never again.", "Not what was promised."},
	{"Not for me.", "Expected more for the money.", "Gave it away.", "Hardly use it."},
	{"It is all right.", "Does the job.", "Okay, nothing special.", "Good enough for now."},
	{"Good buy.", "Happy with it.", "Works well.", "Would buy again.", "Pleasantly surprised."},
	{"Love it!", "Exactly what I was looking for.", "Could not be happier.", "The best I have had.", "My new favourite.",
		"Perfect."},
}

// remarks end some reviews: how the thing was used, by department in the order of shelves.
var remarks = [][]string{
	{"Used it on our weekend in the hills.", "Came along to the lake.", "Three nights out so far."},
	{"Did my Sunday long run with it.", "Ready for the autumn marathon.",
		"Wore it through the park at six in the morning."},
	{"Mornings are better now.", "My espresso has never been this good.", "Second order already."},
	{"The whole family asked for seconds.", "Made two cakes with it on Saturday.", "My sister wants the same."},
	{"The tomatoes are thriving.", "In use on the balcony every day.", "Spring can come."},
	{"A robin came on the first morning.", "Saw a heron by the canal.", "The blackbirds approve."},
	{"Practised every evening this week.", "Played it for friends.", "The neighbours have not complained."},
	{"Finished it in two evenings.", "Lies on the bedside table.", "Lent to a friend already."},
	{"Played it four times on the first evening.", "The children ask for it every weekend.", "A great rainy Sunday."},
	{"Rides with me to work each day.", "Took it on a tour along the river.", "Mounted in two minutes."},
	{"Makes the evenings cosy.", "A gift to myself.", "The living room smells and feels like home."},
	{"My desk is tidy at last.", "In use every working day.", "Colleagues asked where it is from."},
	{"Came along to the pool.", "Tried it at the lake.", "In my bag all summer."},
}

var firstNames = []string{"Ada", "Ben", "Carla", "David", "Elif", "Finn", "Grace", "Hugo", "Ines", "Jonas", "Kaya",
	"Lena", "Marco", "Nora", "Omar", "Paula", "Quinn", "Rosa", "Sami", "Tara", "Uma", "Victor", "Wanda", "Yusuf", "Zoe",
	"Mika", "Anton", "Bea", "Clara", "Dario", "Esther", "Felix"}

var budgets = []string{"Looks for bargains.", "Pays a fair price.", "Does not mind paying for the best."}

// Brands are made of a first part of the department's own and a second one: eight in each.
var brandFirst = []string{"Fern", "Alder", "Kestrel", "Marl", "Pine", "Heron", "Cedar", "Lark", "Stone", "Wren", "Moor",
	"Hazel", "Brook"}

var brandSecond = []string{"hill", "wick", "ford", "ley", " & Co", "holm", "croft", " Works"}
