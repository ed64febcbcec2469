package strict

import (
	"fmt"
	"strings"
	"testing"
)

func TestFiguresAreRead(t *testing.T) {
	f, top, err := Open("f.json", []byte("{\n\t\"n\": 0.5, \"s\": \"x\", \"b\": true,\n\t\"l\": [\"a\", \"b\"], \"none\": null}"))
	if err != nil {
		t.Fatal(err)
	}
	field := top.Fields("n", "s", "b", "l", "none", "absent")
	got := fmt.Sprintln(field("n").In(top).Number(0, 1), field("s").Text(), field("b").Bool(), field("l").Texts(), field("none").There(),
		field("absent").Number(1, 2), field("absent").Text(), field("absent").Bool(), field("absent").Texts())
	if want := "0.5 x true [a b] false 0  false []\n"; got != want || f.Err() != nil {
		t.Errorf("got %s, %v, want %s", got, f.Err(), want)
	}
}

func TestWhatIsWrongHasFileLineAndField(t *testing.T) {
	for text, want := range map[string]string{
		"{\n \"n\": \"1\"\n}":                      "f.json:2: n: want a number",
		"{\n\n \"n\": NaN}":                        "f.json:3: n: NaN is no number",
		"{\"n\": .inf}":                            "f.json:1: n: want a number",
		"{\"n\": 1e999}":                           "f.json:1: n: want a number",
		"{\"n\": [1]}":                             "f.json:1: n: want a number",
		"{\n \"n\": -3}":                           "f.json:2: n: -3 is not possible: want 0 to 10",
		"{\"n\": 11}":                              "f.json:1: n: 11 is not possible: want 0 to 10",
		"{\"n\": 1,\n \"n\": 2}":                   "f.json:2: n: it is there twice: first on line 1",
		"{\"n\": 1,\n \"tex\": \"x\"}":             "f.json:2: tex: it is unknown: want one of n, text, bool, list",
		"{\"n\": 1,\n \"\\u001b[2J\": 1}":          `f.json:2: "\x1b[2J": it is unknown`,
		"{\n\"text\": 5, \"n\": 1}":                "f.json:2: text: want a string",
		"{\n\"bool\": \"true\", \"n\": 1}":         "f.json:2: bool: want true or false",
		"{\n\"list\": {}, \"n\": 1}":               "f.json:2: list: want a list",
		"{\"n\": 1, \"list\": [\"a\",\n 2]}":       "f.json:2: list[1]: want a string",
		"\n{\"text\": \"x\"}":                      "f.json:2: .n: it is missing",
		"[]":                                       "f.json:1: : want an object",
		"{\"n\": 1, \"list\": {\"a\": 1, \"a\":2}": "f.json: yaml: ",
		"": "f.json: the file is empty",
	} {
		f, top, err := Open("f.json", []byte(text))
		if err == nil {
			field := top.Fields("n", "text", "bool", "list")
			if top.node.Kind != 0 && !strings.HasPrefix(text, "[") {
				field("n").In(top).Number(0, 10)
				field("text").Text()
				field("bool").Bool()
				field("list").Texts()
			}
			err = f.Err()
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}

	f, top, err := Open("f.json", []byte("["+strings.Repeat("x,", 49)+"1]"))
	if err != nil {
		t.Fatal(err)
	}
	top.List(func(v Value) { v.Number(0, 1) })
	if got := f.Err().Error(); strings.Count(got, "\n") != mostErrors || !strings.Contains(got, "and 29 more") {
		t.Errorf("of many problems: %s", got)
	}
}
