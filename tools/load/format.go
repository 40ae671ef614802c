package load

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// This file converts a Config, and settings with a special format, from and to text and JSON.

const (
	wantRate    = quantity.Error("messages a second above 0, such as 500 or 20k; 1k:100k for a change from the first to the second; or @10ms or @10ms,p99.9 for a search")
	wantRamp    = quantity.Error("a time such as 60s, or FROM:TO:TIME such as 0:100k:60s, with FROM not above TO")
	wantSource  = quantity.Error("an IP address of this machine, a range such as 10.0.0.1-10.0.0.20, or a network such as 10.0.0.0/24")
	wantFewer   = quantity.Error("at most 65536 addresses in all")
	wantPercent = quantity.Error("percentiles above 0 and at most 100, such as 95,99,99.5")
)

const MaxSources = 65_536

// textParsers maps the names of string settings to functions that validate a text and return the value. Settings
// without a function accept any text.
var textParsers = map[string]func(text string) (string, error){
	"message":            validateTemplate,
	"message-file":       readLiteralMessageFile,
	"template-file":      readAndValidateTemplateFile,
	"first-message":      validateTemplate,
	"first-message-file": readAndValidateTemplateFile,
	"answer":             requireNonEmpty,
	"heartbeat":          parseNonEmptyLine,
	"heartbeat-answer":   parseNonEmptyLine,
	"broadcast":          parseNonEmptyLine,
	"ws": func(path string) (string, error) {
		if !strings.HasPrefix(path, "/") {
			return "", quantity.Error("a path that begins with a slash, given as --ws=/chat")
		}
		return path, nil
	},
	"http": func(text string) (string, error) {
		on, err := strconv.ParseBool(text)
		switch {
		case err != nil:
			return "", quantity.Error("true or false")
		case on:
			return matchHTTP, nil
		}
		return "", nil
	},
	"latency-marker": func(text string) (string, error) {
		_, err := requireNonEmpty(text)
		return "marker:" + escapeForMatchRule(text), err
	},
}

func requireNonEmpty(text string) (sameText string, _ error) {
	if text == "" {
		return "", quantity.Error(fmt.Sprintf("1 to %d bytes", MaxMessage))
	}
	return text, nil
}

func parseNonEmptyLine(text string) (lineWithNewline string, _ error) {
	line := strings.TrimSuffix(text, "\n")
	if line == "" {
		return "", quantity.Error("a line that is not empty")
	}
	return line + "\n", nil
}

func validateTemplate(text string) (sameText string, _ error) {
	if _, err := requireNonEmpty(text); err != nil {
		return "", err
	}
	_, err := message.Parse(text)
	return text, err
}

// readNonEmptyMessageFile reads a file of 1 to MaxMessage bytes.
func readNonEmptyMessageFile(path string) (message string, _ error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxMessage+1))
	switch n := len(text); {
	case err != nil:
		return "", err
	case n == 0:
		return "", fmt.Errorf("file %s is empty; expected 1 to %d bytes", path, MaxMessage)
	case n > MaxMessage:
		return "", fmt.Errorf("file %s is too large; expected 1 to %d bytes", path, MaxMessage)
	}
	return string(text), nil
}

func readAndValidateTemplateFile(path string) (template string, _ error) {
	text, err := readNonEmptyMessageFile(path)
	if err != nil {
		return "", err
	}
	return validateTemplate(text)
}

// readLiteralMessageFile reads a file, and returns a message template that generates exactly its content.
func readLiteralMessageFile(path string) (string, error) {
	text, err := readNonEmptyMessageFile(path)
	return message.LiteralTemplate(text), err
}

func parseAndAddHeaderLine(h *http.Header, line string) error {
	name, value, found := strings.Cut(line, ":")
	if name = strings.TrimSpace(name); !found || name == "" {
		return quantity.Error("NAME: VALUE")
	}
	if *h == nil {
		*h = make(http.Header)
	}
	h.Add(name, strings.TrimSpace(value))
	return nil
}

func formatHeaderLines(h http.Header) (lines []string) {
	for name, values := range h {
		for _, value := range values {
			lines = append(lines, name+": "+value)
		}
	}
	slices.Sort(lines)
	return lines
}

func parseRFC3339(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, quantity.Error("a time such as 2026-03-01T12:00:00Z")
	}
	return at, nil
}

func pathOrRoot(path string) string { return cmp.Or(path, "/") }

func formatDecimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// parseRateRangeOrGoal parses a rate (500), a range (1k:100k) or a goal (@10ms,p99.9).
func parseRateRangeOrGoal(text string) (r Rate, err error) {
	if latency, found := strings.CutPrefix(text, "@"); found {
		r.Goal, err = parseLatencyAndOptionalPercentile(latency)
		return r, err
	}
	first, second, changes := strings.Cut(text, ":")
	from, ok := quantity.ParseNumberWithSuffix(first)
	to, toOK := quantity.ParseNumberWithSuffix(second)
	if !ok || from == 0 || changes && (!toOK || to == 0) {
		return r, wantRate
	}
	return Rate{PerSecond: from, To: to}, nil
}

// parseLatencyAndOptionalPercentile parses a latency such as 10ms or 10ms,p99.9. The default percentile is 99.
func parseLatencyAndOptionalPercentile(text string) (goal Goal, err error) {
	latency, percent, found := strings.Cut(text, ",")
	if goal.Under, err = quantity.ParsePositiveDurationOrSeconds(latency); err != nil {
		return goal, wantRate
	}
	if !found {
		goal.Percentile = 99
		return goal, nil
	}
	digits, found := strings.CutPrefix(percent, "p")
	if goal.Percentile, err = ParsePercentileNumber(digits); !found || err != nil || goal.Percentile == 100 {
		return goal, wantRate
	}
	return goal, nil
}

func (r Rate) formatSetting() string {
	switch {
	case r.Goal.Under > 0:
		return r.Goal.String()
	case r.PerSecond != 0 && r.To != 0:
		return formatDecimal(r.PerSecond) + ":" + formatDecimal(r.To)
	case r.PerSecond != 0:
		return formatDecimal(r.PerSecond)
	}
	return ""
}

// String returns the goal as in the flag --rate, such as @10ms,p99.
func (g Goal) String() string {
	if g.Under == 0 {
		return ""
	}
	return "@" + g.Under.String() + ",p" + formatDecimal(cmp.Or(g.Percentile, 99))
}

// ParsePercentileNumber parses a percentile such as 99.9. The percentile must be above 0 and at most 100.
func ParsePercentileNumber(text string) (float64, error) {
	p, err := strconv.ParseFloat(text, 64)
	if strings.Trim(text, "0123456789.") != "" || err != nil || p <= 0 || p > 100 {
		return 0, wantPercent
	}
	return p, nil
}

func parseRampOrItsDuration(text string) (r Ramp, err error) {
	over := text
	if numbers := strings.Split(text, ":"); len(numbers) == 3 {
		from, fromErr := quantity.ParseCount(numbers[0])
		to, toErr := quantity.ParsePositive(numbers[1])
		if fromErr != nil || toErr != nil || from > to {
			return Ramp{}, wantRamp
		}
		r.From, r.To, over = from, to, numbers[2]
	}
	if r.Over, err = quantity.ParsePositiveDurationOrSeconds(over); err != nil {
		return Ramp{}, wantRamp
	}
	return r, nil
}

// String returns the ramp as in the flag --ramp: a duration, or a text such as 0:100000:1m0s.
func (r Ramp) String() string {
	if r.To == 0 {
		return r.Over.String()
	}
	return fmt.Sprintf("%d:%d:%v", r.From, r.To, r.Over)
}

// ExpandSourceRange returns the addresses in a range such as 10.0.0.1-10.0.0.20, the host addresses of a network, or a
// single address. It returns an error if there are more addresses than limit permits.
func ExpandSourceRange(text string, limit int) ([]netip.Addr, error) {
	first, last, ok := parseHostRange(text)
	if !ok {
		return nil, wantSource
	}
	var list []netip.Addr
	for addr := first; ; addr = addr.Next() {
		if len(list) == limit {
			return nil, wantFewer
		}
		if list = append(list, addr); addr == last {
			return list, nil
		}
	}
}

func parseHostRange(text string) (first, last netip.Addr, ok bool) {
	if from, to, found := strings.Cut(text, "-"); found {
		first, err := netip.ParseAddr(from)
		last, otherErr := netip.ParseAddr(to)
		alike := first.BitLen() == last.BitLen() && first.Zone() == last.Zone()
		return first, last, err == nil && otherErr == nil && alike && first.Compare(last) <= 0
	}
	if strings.Contains(text, "/") {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Addr{}, netip.Addr{}, false
		}
		first, last = hostRange(network)
		return first, last, true
	}
	first, err := netip.ParseAddr(text)
	return first, first, err == nil
}

// hostRange returns the first and the last host address of a network. The network and broadcast addresses of IPv4 are
// not host addresses, except in /31 and /32.
func hostRange(network netip.Prefix) (first, last netip.Addr) {
	first = network.Masked().Addr()
	bytes := first.AsSlice()
	for bit := network.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ = netip.AddrFromSlice(bytes)
	if first.Is4() && network.Bits() < 31 { // RFC 3021
		first, last = first.Next(), last.Prev()
	}
	return first, last
}

func escapeForMatchRule(text string) string {
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

// MarshalJSON writes the settings whose fields are not zero, in the format of UnmarshalJSON. Fields that are not
// settings, such as Observe, Begin and TLS.Config, are omitted.
func (c Config) MarshalJSON() ([]byte, error) {
	out := bytes.NewBufferString("{")
	for i := range settings {
		s := &settings[i]
		texts := s.textsThatSetField(&c)
		if len(texts) == 0 {
			continue
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		key, value := jsonKey(s.Name), any(texts)
		if !s.List {
			value = s.textToJSONScalar(texts[0])
		}
		if s.acceptsBytes() && !utf8.ValidString(texts[0]) {
			key, value = key+inBase64, []byte(texts[0])
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "%q:%s", key, encoded)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// inBase64 is the suffix of a JSON key whose value is in base64. Base64 is used for texts that are not valid UTF-8.
const inBase64 = "_base64"

func (s *Setting) acceptsBytes() bool {
	return slices.Contains([]string{"message", "first-message", "answer"}, s.Name)
}

func (s *Setting) textToJSONScalar(text string) any {
	if s.Bare == "true" {
		return true
	}
	if n, err := strconv.ParseUint(text, 10, 53); err == nil && strconv.FormatUint(n, 10) == text && s.typ.Kind() != reflect.String {
		return n
	}
	return text
}

// UnmarshalJSON reads one JSON object. The keys are the names of Settings, with underscores instead of dashes. The
// value of "target" can be a URL; see SetTargets. All other values have the formats of the flags. A value can be a
// string such as "10k" or "1m30s", a number, or a boolean. If the value of a time is a number, the unit is seconds. If
// Setting.List is set, the value can also be an array of strings.
//
// If the object has no key for a field, the field keeps its value. If a key is unknown or a value is invalid, the error
// names the key.
func (c *Config) UnmarshalJSON(data []byte) error {
	var values map[string]any
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	if err := numbers.Decode(&values); err != nil {
		return fmt.Errorf("load: config: %w; expected a JSON object", err)
	}
	if numbers.More() {
		return errors.New("load: config: data after the JSON object; expected one object")
	}
	given := make(map[string][]string)
	var known []string
	for i := range settings {
		s := &settings[i]
		key := jsonKey(s.Name)
		known = append(known, key)
		value, ok := values[key]
		text, encoded := values[key+inBase64].(string)
		delete(values, key)
		switch plain, err := base64.StdEncoding.DecodeString(text); {
		case encoded && s.acceptsBytes() && (err != nil || ok):
			return fmt.Errorf("load: config: %s is %q; expected base64, and no key %s", key+inBase64, text, key)
		case encoded && s.acceptsBytes():
			delete(values, key+inBase64)
			given[s.Name] = []string{string(plain)}
		case ok:
			if given[s.Name], err = textsFromJSON(value, s.Bare); err != nil {
				return fmt.Errorf("load: config: %s is %w", key, err)
			}
		}
	}
	for key := range values {
		return fmt.Errorf("load: config: unknown key %q; expected one of %s", key, strings.Join(known, ", "))
	}
	if err := c.Set(given); err != nil {
		var of *SettingError
		errors.As(err, &of)
		return fmt.Errorf("load: config: %s is %w", jsonKey(of.Name), of.Err)
	}
	if c.Target == "" {
		if len(c.Also) > 0 {
			return errors.New("load: config: also is given without target; expected both")
		}
		return nil
	}
	return c.SetTargets(append([]string{c.Target}, c.Also...)...)
}

// textsFromJSON converts a JSON value to texts. The value true becomes textForTrue, or "true" if textForTrue is empty.
func textsFromJSON(value any, textForTrue string) ([]string, error) {
	switch v := value.(type) {
	case string:
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		if v && textForTrue != "" {
			return []string{textForTrue}, nil
		}
		return []string{strconv.FormatBool(v)}, nil
	case []any:
		all := []string{}
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, errors.New("an array with an element that is not a string; expected strings only")
			}
			all = append(all, text)
		}
		return all, nil
	}
	return nil, errors.New("null or an object; expected a string, a number, true or false")
}
