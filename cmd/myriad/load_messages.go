package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/myriad-go/myriad/internal/message"
	"github.com/myriad-go/myriad/load"
)

// messageFiles are the paths of files with messages, "" for none.
type messageFiles struct{ message, template, first string }

// messageTexts is what is in them.
type messageTexts struct{ message, template, first string }

// read reads the files.
func (f messageFiles) read() (texts messageTexts, err error) {
	for _, file := range []struct {
		flag, path string
		to         *string
	}{
		{"message-file", f.message, &texts.message},
		{"template-file", f.template, &texts.template},
		{"first-message-file", f.first, &texts.first},
	} {
		if file.path == "" {
			continue
		}
		if *file.to, err = readMessage(file.flag, file.path); err != nil {
			return messageTexts{}, err
		}
	}
	return texts, nil
}

// readMessage reads a file that is not longer than a message can be, so that
// the wrong file does no harm.
func readMessage(flag, path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, load.MaxMessage+1))
	if err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	if n := len(text); n == 0 || n > load.MaxMessage {
		size := "no bytes"
		if n > 0 {
			size = "more"
		}
		return "", usagef("--%s: %s has %s; expected 1 to %d bytes", flag, path, size, load.MaxMessage)
	}
	return string(text), nil
}

// setMessages sets what is sent.
func (f *loadFlags) setMessages(given given, files messageTexts) error {
	f.cfg.Message, f.cfg.Template = nil, ""
	switch {
	case given("message"):
		text, err := f.text("message", f.messages)
		if err != nil {
			return err
		}
		return f.setMessage("message", text)
	case given("template-file"):
		return f.setMessage("template-file", files.template)
	case given("message-file"):
		f.cfg.Message = []byte(files.message)
	case f.request != "":
		f.cfg.Message = []byte(f.request)
	}
	return nil
}

// setMessage sets what is sent to what a template makes: one message where it has
// no expressions.
func (f *loadFlags) setMessage(flag, text string) error {
	if !isTemplate(text) {
		f.cfg.Message = []byte(text)
		return nil
	}
	t, err := message.Parse(text)
	if err != nil {
		return usagef("--%s: %w", flag, err)
	}
	if fixed, ok := t.Fixed(); ok {
		f.cfg.Message = fixed
	} else {
		f.cfg.Template = text
	}
	return nil
}

// isTemplate says whether a text can have expressions.
func isTemplate(text string) bool { return strings.Contains(text, `\{`) }

// setFirst sets what is sent first.
func (f *loadFlags) setFirst(files messageTexts) (err error) {
	flag := "first-message-file"
	f.cfg.First = files.first
	if len(f.firsts) > 0 {
		flag = "first-message"
		if f.cfg.First, err = f.text(flag, f.firsts); err != nil {
			return err
		}
	}
	if _, err := message.Parse(f.cfg.First); err != nil {
		return usagef("--%s: %w", flag, err)
	}
	return nil
}

// setAnswers sets what is expected.
func (f *loadFlags) setAnswers(given given) error {
	if given("answer") {
		text, err := f.plainText("answer", f.answer)
		if err != nil {
			return err
		}
		f.cfg.Answer = []byte(text)
	}
	if given("latency-marker") {
		text, err := f.plainText("latency-marker", f.marker)
		if err != nil {
			return err
		}
		f.cfg.Match = "marker:" + ruleText(text)
	}
	return nil
}

// text is the one text that a flag was given, without its escapes if they are to
// be read. It is for message.Parse.
func (f *loadFlags) text(flag string, given []string) (string, error) {
	if len(given) > 1 {
		return "", usagef("--%s is given %d times; expected once, with all there is to send", flag, len(given))
	}
	text := given[0]
	if text == "" {
		return "", usagef("--%s is %q; expected 1 to %d bytes", flag, text, load.MaxMessage)
	}
	if !f.unescape {
		return text, nil
	}
	plain, err := message.Unescape(text)
	if err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	return string(plain), nil
}

// plainText is such a text where it can't be a template.
func (f *loadFlags) plainText(flag, given string) (string, error) {
	text, err := f.text(flag, []string{given})
	if err != nil || !f.unescape {
		return text, err
	}
	t, err := message.Parse(text)
	if err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	fixed, ok := t.Fixed()
	if !ok {
		return "", usagef("--%s is %q, which has an expression; expected none", flag, given)
	}
	return string(fixed), nil
}

// ruleText writes bytes as the text of a rule of load.Config.Match, whose own
// escapes are \\ and \xHH.
func ruleText(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		switch {
		case b == '\\':
			out.WriteString(`\\`)
		case b < ' ' || b > '~':
			fmt.Fprintf(&out, `\x%02x`, b)
		default:
			out.WriteByte(b)
		}
	}
	return out.String()
}
