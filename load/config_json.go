package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MarshalJSON writes what is not the default, as UnmarshalJSON reads it. It leaves out
// what only a program can have: Observe, Enough and TLS.Config.
func (c Config) MarshalJSON() ([]byte, error) {
	out := bytes.NewBufferString("{")
	for _, s := range Settings(&c) {
		texts := s.texts()
		if len(texts) == 0 {
			continue
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		var value any = texts
		if !s.List {
			value = jsonValue(s, texts[0])
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "%q:%s", underscored(s.Name), encoded)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// underscored is a setting's name in JSON.
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

// jsonValue is a text as JSON has it: true, a whole number or a string.
func jsonValue(s Setting, text string) any {
	if s.Bare == "true" && text == "true" {
		return true
	}
	if n, err := strconv.ParseUint(text, 10, 53); err == nil && strconv.FormatUint(n, 10) == text && s.Name != "message" && s.Name != "answer" {
		return n
	}
	return text
}

// UnmarshalJSON reads one object. Its keys are the names of Settings with underscores,
// "target" and "also" among them, and its values are spelled as those of flags are:
// strings such as "10k" and "1m30s", numbers (seconds, where it is a time), true and
// false, and arrays for what can be given more than once. A target can be a URL: see
// SetTargets. Fields without a key are left as they are. A key that there is not, and a
// value that can't be read, is an error that names it.
func (c *Config) UnmarshalJSON(data []byte) error {
	var values map[string]any
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	if err := numbers.Decode(&values); err != nil {
		return fmt.Errorf("load: config: %w; expected an object", err)
	}
	given := make(map[string][]string)
	var known []string
	for _, s := range Settings(c) {
		key := underscored(s.Name)
		known = append(known, key)
		value, ok := values[key]
		if !ok {
			continue
		}
		delete(values, key)
		texts, err := textsOf(value, s.Bare)
		if err != nil {
			return fmt.Errorf("load: config: %s is %w", key, err)
		}
		given[s.Name] = texts
	}
	for key := range values {
		return fmt.Errorf("load: config: unknown key %q; expected one of %s", key, strings.Join(known, ", "))
	}
	if err := c.Set(given); err != nil {
		var of *SettingError
		errors.As(err, &of)
		return fmt.Errorf("load: config: %s is %w", underscored(of.Name), of.Err)
	}
	if c.Target == "" {
		if len(c.Also) > 0 {
			return errors.New("load: config: also is given without target; expected both")
		}
		return nil
	}
	return c.SetTargets(append([]string{c.Target}, c.Also...)...)
}

// textsOf are the texts that a value of JSON stands for, true for bare.
func textsOf(value any, bare string) ([]string, error) {
	switch v := value.(type) {
	case string:
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		if v && bare != "" {
			return []string{bare}, nil
		}
		return []string{strconv.FormatBool(v)}, nil
	case []any:
		all := []string{}
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, errors.New("an array; expected one of strings")
			}
			all = append(all, text)
		}
		return all, nil
	}
	return nil, errors.New("null or an object; expected a string, a number, true or false")
}
