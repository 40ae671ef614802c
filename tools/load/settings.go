package load

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// Setting describes a field of a Config that can be set by text: as a command-line flag or a JSON key. It is derived
// from the field's type and tags:
//
//	flag      the name and an optional letter; flag2 and flag3 are further flags for the field
//	key       the name of a field that has no flag
//	group     the help heading of this field and the following ones
//	help      the description, with the value in angle brackets; likewise help2 and help3
//	bare      the value of a flag that is given without a value
//	default   the value of an empty field, unless a given setting excludes the field
//	min, max  the limits of a number; with a min of 0, numbers and times can be 0
//	words     the words for false (the default) and true
//	oneof     a name shared by settings of which at most one can be given
//	not       excluded settings; the first setting of a field stands for all of them
//	needs     a required setting
type Setting struct {
	// Name is the name of the flag, such as "connect-rate". The JSON key has underscores instead of dashes. Short
	// is the letter of the flag, "" for none.
	Name, Short string
	// Group is the heading of the flag in the help, or "" for a setting without a flag.
	Group string
	// Help describes the setting. The placeholder for the setting's value is in `backquotes`.
	Help string
	// Bare is the value of a flag that is given without a value, as in --tls. It is also used if the value in JSON is
	// true. If Bare is "", the flag requires a value.
	Bare string
	// List reports whether the setting accepts several values: a repeated flag, or an array in JSON.
	List bool

	field string // name of the first setting of the same field
	index []int  // index path of the field in Config
	typ   reflect.Type
	tag   reflect.StructTag
	words []string // words for false and true
}

var settings = settingsFromTags(reflect.TypeFor[Config](), "", nil)

// Settings returns all settings of a Config, in the order of the help.
func Settings() []Setting { return slices.Clone(settings) }

// settingsFromTags returns the settings of the struct type t and of the structs within t. index is the path of t in
// Config, as in reflect.Value.FieldByIndex.
func settingsFromTags(t reflect.Type, helpGroup string, index []int) (all []Setting) {
	for i := range t.NumField() {
		f := t.Field(i)
		fieldIndex := append(slices.Clip(index), i)
		helpGroup = cmp.Or(f.Tag.Get("group"), helpGroup)
		all = append(all, keyAndFlagSettingsOfField(f, helpGroup, fieldIndex)...)
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner.PkgPath() == t.PkgPath() {
			all = append(all, settingsFromTags(inner, helpGroup, fieldIndex)...)
		}
	}
	return all
}

func keyAndFlagSettingsOfField(f reflect.StructField, helpGroup string, index []int) (all []Setting) {
	s := Setting{index: index, typ: f.Type, tag: f.Tag}
	s.List = f.Type.Kind() == reflect.Slice || f.Type == reflect.TypeFor[http.Header]()
	defaultText := f.Tag.Get("default")
	if words := f.Tag.Get("words"); words != "" {
		s.words = strings.Split(words, ",")
		defaultText = s.words[0]
	}
	isBool := s.words == nil && f.Type.Kind() == reflect.Bool || f.Type == reflect.TypeFor[*TLS]()
	add := func(number, helpGroup, name string) {
		if name == "" {
			return
		}
		s.Name, s.Short, _ = strings.Cut(name, ",")
		s.field, s.Group, s.Bare = cmp.Or(s.field, s.Name), helpGroup, f.Tag.Get("bare"+number)
		if isBool {
			s.Bare = "true"
		}
		s.Help = strings.NewReplacer("<", "`", ">", "`").Replace(f.Tag.Get("help" + number))
		if defaultText != "" {
			s.Help += " (default " + defaultText + ")"
		}
		all = append(all, s)
	}
	add("", "", f.Tag.Get("key"))
	for _, number := range []string{"", "2", "3"} {
		add(number, helpGroup, f.Tag.Get("flag"+number))
	}
	return all
}

func (s *Setting) numberFromTag(tag string, fallback int64) int64 {
	if n, err := quantity.ParseCount(s.tag.Get(tag)); err == nil {
		return int64(n)
	}
	return fallback
}

func (s *Setting) canBeZero() bool { return s.tag.Get("min") == "0" }

// fieldValue returns the field of c that s sets. The field can belong to a nested struct to which c has only a nil
// pointer. If allocateNil is true, fieldValue allocates the missing struct. Otherwise, it returns the zero value of the
// field, and exists is false.
func (s *Setting) fieldValue(c *Config, allocateNil bool) (v reflect.Value, exists bool) {
	v = reflect.ValueOf(c).Elem()
	for _, i := range s.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() && !allocateNil {
				return reflect.Zero(s.typ), false
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v, true
}

func (s *Setting) parseListOrSingleAndSetField(c *Config, texts ...string) error {
	if len(texts) != 1 && !s.List {
		return fmt.Errorf("given %d times; expected once", len(texts))
	}
	before, ok := s.fieldValue(c, false)
	parsed := reflect.New(s.typ).Elem()
	if !s.List {
		parsed.Set(before)
	}
	for _, text := range texts {
		if err := s.parseIntoOrAppendToField(parsed, text); err != nil {
			return fmt.Errorf("%q; %w", text, err)
		}
	}
	if ok || !parsed.IsZero() {
		field, _ := s.fieldValue(c, true)
		field.Set(parsed)
	}
	return nil
}

func (s *Setting) parseIntoOrAppendToField(field reflect.Value, text string) (err error) {
	switch v := field.Addr().Interface().(type) {
	case *bool:
		*v, err = s.parseBoolOrWord(text)
	case *int:
		parse := quantity.ParsePositive
		if s.canBeZero() {
			parse = quantity.ParseCount
		}
		*v, err = parse(text)
	case *int64:
		*v, err = quantity.ParsePositive64(text)
	case *uint64:
		*v, err = quantity.ParseDecimalSeed(text)
	case *time.Duration:
		parse := quantity.ParsePositiveDurationOrSeconds
		if s.canBeZero() {
			parse = quantity.ParseDurationOrSeconds
		}
		*v, err = parse(text)
	case *time.Time:
		*v, err = parseRFC3339(text)
	case *string:
		*v = text
		if parse := textParsers[s.Name]; parse != nil {
			*v, err = parse(text)
		}
	case *[]string:
		*v = append(*v, text)
	case *[]netip.Addr:
		var more []netip.Addr
		more, err = ExpandSourceRange(text, MaxSources-len(*v))
		*v = append(*v, more...)
	case *http.Header:
		err = parseAndAddHeaderLine(v, text)
	case *Ramp:
		*v, err = parseRampOrItsDuration(text)
	case *Rate:
		poisson := v.Poisson
		*v, err = parseRateRangeOrGoal(text)
		v.Each, v.Poisson = s.Name != s.field, poisson
	case **TLS:
		var on bool
		if on, err = s.parseBoolOrWord(text); !on {
			*v = nil
		} else if *v == nil {
			*v = new(TLS)
		}
	default:
		panic("load: the setting " + s.Name + " has a type that no text is read as")
	}
	return err
}

func (s *Setting) parseBoolOrWord(text string) (on bool, err error) {
	if s.words != nil {
		if !slices.Contains(s.words, text) {
			return false, quantity.Error(min(s.words[0], s.words[1]) + " or " + max(s.words[0], s.words[1]))
		}
		return text == s.words[1], nil
	}
	if on, err = strconv.ParseBool(text); err != nil {
		return false, quantity.Error("true or false")
	}
	return on, nil
}

// textsThatSetField returns the texts from which s can restore the current value of its field in c. If the field is
// empty, it returns nil. Several settings can share a field. If another of these settings must restore the current
// value, textsThatSetField also returns nil.
func (s *Setting) textsThatSetField(c *Config) (texts []string) {
	value, ok := s.fieldValue(c, false)
	first := s.Name == s.field
	switch v := value.Interface().(type) {
	case Rate:
		if text := v.formatSetting(); text != "" && v.Each != first {
			return []string{text}
		}
		return nil
	case http.Header:
		return formatHeaderLines(v)
	case string:
		if s.Name == "ws" && ok {
			return []string{pathOrRoot(v)}
		}
	}
	if value.IsZero() || !first {
		return nil
	}
	switch v := value.Interface().(type) {
	case *TLS:
		return []string{"true"}
	case time.Time:
		return []string{v.UTC().Format(time.RFC3339Nano)}
	case bool:
		if s.words != nil {
			return s.words[1:]
		}
	}
	if !s.List {
		return []string{fmt.Sprint(value)}
	}
	for i := range value.Len() {
		texts = append(texts, fmt.Sprint(value.Index(i)))
	}
	return texts
}

func (c *Config) nonEmptySettings() (given []*Setting) {
	for i := range settings {
		if len(settings[i].textsThatSetField(c)) > 0 {
			given = append(given, &settings[i])
		}
	}
	return given
}

func (s *Setting) excludes(other *Setting) bool {
	group := s.tag.Get("oneof")
	return group != "" && group == other.tag.Get("oneof") && s.field != other.field || s.isListedIn(other.tag.Get("not")) || other.isListedIn(s.tag.Get("not"))
}

func (s *Setting) isListedIn(commaSeparated string) bool {
	names := strings.Split(commaSeparated, ",")
	return slices.Contains(names, s.Name) || slices.Contains(names, s.field)
}

// missingRequiredSetting returns the name of the setting that s requires. If the required setting is in given, or if s
// requires no setting, it returns "".
func (s *Setting) missingRequiredSetting(given []*Setting) (nameOrEmpty string) {
	needed := s.tag.Get("needs")
	if slices.ContainsFunc(given, func(g *Setting) bool { return g.field == needed }) {
		return ""
	}
	return needed
}

// applyDefaultsUnlessExcluded sets each empty field to its default. A field stays empty if a given setting excludes the
// field, or if the field requires a setting that is not given.
func (c *Config) applyDefaultsUnlessExcluded() {
	given := c.nonEmptySettings()
	for i := range settings {
		s := &settings[i]
		value, ok := s.fieldValue(c, false)
		defaultText := s.tag.Get("default")
		if defaultText == "" || s.Name != s.field || !ok || !value.IsZero() || s.missingRequiredSetting(given) != "" || slices.ContainsFunc(given, s.excludes) {
			continue
		}
		if err := s.parseListOrSingleAndSetField(c, defaultText); err != nil {
			panic("load: the default of " + s.Name + " is " + err.Error())
		}
	}
}

func (s *Setting) checkNumberInRangeUnlessZero(c *Config) error {
	value, ok := s.fieldValue(c, false)
	if !ok || !value.CanInt() || value.IsZero() {
		return nil
	}
	low, high := s.numberFromTag("min", 1), s.numberFromTag("max", math.MaxInt64)
	if s.typ == reflect.TypeFor[time.Duration]() {
		low, high = 0, int64(maxDuration)
	}
	if n := value.Int(); n < low || n > high {
		as := func(n int64) any { return reflect.ValueOf(n).Convert(s.typ) }
		return fmt.Errorf("%v; expected %v to %v", value, as(low), as(high))
	}
	return nil
}

// SettingError describes an invalid setting.
type SettingError struct {
	Name string // setting name, as in Setting
	Err  error  // such as: "x"; expected a whole number
}

func (e *SettingError) Error() string {
	return "load: " + flagOrElseJSONKey(e.Name) + " is " + e.Err.Error()
}

func (e *SettingError) Unwrap() error { return e.Err }

func errMutuallyExclusive(name, other string) error {
	return &SettingError{name, fmt.Errorf("given together with %s; expected one of the two", flagOrElseJSONKey(other))}
}

func flagOrElseJSONKey(name string) string {
	if slices.ContainsFunc(settings, func(s Setting) bool { return s.Name == name && s.Group == "" }) {
		return jsonKey(name)
	}
	return "--" + name
}

func jsonKey(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Set sets the settings whose names are keys of textsBySetting. All other settings keep their values. Only a setting
// whose List is true can have several texts. Set ignores unknown names. Its errors are of type *SettingError.
func (c *Config) Set(textsBySetting map[string][]string) error {
	first := make(map[string]string) // by field: the given setting
	for i := range settings {
		s := &settings[i]
		if textsBySetting[s.Name] == nil {
			continue
		}
		if other := first[s.field]; other != "" {
			return errMutuallyExclusive(s.Name, other)
		}
		first[s.field] = s.Name
		if err := s.parseListOrSingleAndSetField(c, textsBySetting[s.Name]...); err != nil {
			return &SettingError{s.Name, err}
		}
	}
	return nil
}
