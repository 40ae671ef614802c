package scenario

import (
	"encoding/json"
	"strings"
	"time"
)

// Duration is a time.Duration. In TOML, it is text such as "1.5s"; in JSON, it is a number of nanoseconds.
type Duration time.Duration

func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return Errorf("time is %q; expected one such as \"1.5s\" or \"2m\"", text)
	}
	*d = Duration(v)
	return nil
}

func (d *Duration) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*int64)(d)) }

func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// Words contains the words of a command line. TOML represents the command line as one text. Spaces separate words,
// except inside single or double quotes. No other character is special.
type Words []string

func (w *Words) UnmarshalText(text []byte) (err error) {
	*w, err = splitCommandLine(string(text))
	return err
}

func (w *Words) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*[]string)(w)) }

func (w Words) replaceInAllWords(oldnew ...string) Words {
	r := strings.NewReplacer(oldnew...)
	words := make(Words, len(w))
	for i, word := range w {
		words[i] = r.Replace(word)
	}
	return words
}

// splitCommandLine splits a command line at spaces, tabs and line ends that are not within quotes.
func splitCommandLine(line string) (words []string, err error) {
	var word strings.Builder
	var quote rune // the open quote, or 0
	started := false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, started = c, true
		case quote == 0 && strings.ContainsRune(" \t\r\n", c):
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(c)
			started = true
		}
	}
	if quote != 0 {
		return nil, Errorf("command %q has an unclosed quote; expected a closing %c", line, quote)
	}
	if started {
		words = append(words, word.String())
	}
	return words, nil
}
