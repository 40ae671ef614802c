package lab

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder fills a scenario from what a file says, and knows on which line what is.
type decoder struct{ lines map[string]int }

// decode fills a struct from a table. The fields' toml tags are the keys; a field whose
// key is missing has what its default tag says.
func (d *decoder) decode(into *Scenario, table map[string]any) error {
	return d.set(reflect.ValueOf(into).Elem(), table, "")
}

// errorAt says on which line something is wrong.
func (d *decoder) errorAt(path, format string, args ...any) error {
	return d.at(path, wrong(format, args...))
}

// at adds the line of a path to an error, or that of the nearest table around it.
func (d *decoder) at(path string, err error) error {
	if err == nil {
		return nil
	}
	for path != "" {
		for _, at := range []string{path, path + "[0]"} { // a list begins with its first table
			if line, ok := d.lines[at]; ok {
				return wrong("line %d: %v", line, err)
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return err
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	wordsType    = reflect.TypeFor[Words]()
)

// set sets a value to what stands at a path.
func (d *decoder) set(v reflect.Value, got any, path string) error {
	switch v.Type() {
	case durationType:
		return d.setDuration(v, got, path)
	case wordsType:
		if line, ok := got.(string); ok {
			words, err := splitWords(line)
			v.Set(reflect.ValueOf(Words(words)))
			return d.at(path, err)
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.set(v.Elem(), got, path)
	case reflect.Struct:
		return d.setStruct(v, got, path)
	case reflect.Map:
		return d.setMap(v, got, path)
	case reflect.Slice:
		return d.setSlice(v, got, path)
	}
	return d.setValue(v, got, path)
}

// setValue sets a value that is no duration and has no others in it.
func (d *decoder) setValue(v reflect.Value, got any, path string) error {
	switch got := got.(type) {
	case string:
		if v.Kind() == reflect.String {
			v.SetString(got)
			return nil
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(got)
			return nil
		}
	case int64:
		if v.CanInt() && !v.OverflowInt(got) {
			v.SetInt(got)
			return nil
		}
		if v.CanFloat() {
			v.SetFloat(float64(got))
			return nil
		}
	case float64:
		if v.CanFloat() {
			v.SetFloat(got)
			return nil
		}
	}
	return d.mistyped(v, got, path)
}

func (d *decoder) setDuration(v reflect.Value, got any, path string) error {
	if text, ok := got.(string); ok {
		if took, err := time.ParseDuration(text); err == nil {
			v.SetInt(int64(took))
			return nil
		}
	}
	return d.mistyped(v, got, path)
}

// mistyped says that a value is of the wrong type.
func (d *decoder) mistyped(v reflect.Value, got any, path string) error {
	return d.errorAt(path, "%s is %s; expected %s", path[strings.LastIndexByte(path, '.')+1:], written(got), typeText(v.Type()))
}

// written is a value about as it stands in a file.
func written(got any) string {
	switch got := got.(type) {
	case string:
		return strconv.Quote(got)
	case int64:
		return strconv.FormatInt(got, 10)
	case float64:
		return strconv.FormatFloat(got, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(got)
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "a list"
	}
	return "a date or a time of day"
}

// typeText says what is written for a type.
func typeText(t reflect.Type) string {
	switch {
	case t == durationType:
		return `a time in quotes such as "1.5s" or "2m"`
	case t == wordsType:
		return `a command line in quotes, or a list of its words such as ["server", "--addr", "{addr}"]`
	}
	switch t.Kind() {
	case reflect.String:
		return "a text in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64, reflect.Float32:
		return "a number"
	case reflect.Slice:
		if e := t.Elem(); e.Kind() == reflect.Struct {
			return "tables, with their name in two brackets"
		}
		return `a list such as ["a", "b"]`
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a table, with its name in brackets"
	}
	return "a whole number"
}

func (d *decoder) setStruct(v reflect.Value, got any, path string) error {
	table, ok := got.(map[string]any)
	if !ok {
		return d.mistyped(v, got, path)
	}
	fields := fieldsOf(v)
	for _, key := range d.keys(table, path) {
		field, ok := fields[key]
		if !ok {
			return d.unknown(key, fields, path)
		}
		if err := d.set(field, table[key], join(path, key)); err != nil {
			return err
		}
	}
	return d.setTagged(v, table, path)
}

// setTagged gives the fields of a table whose key is missing what their default tag says,
// and refuses those that are less than their least tag says.
func (d *decoder) setTagged(v reflect.Value, table map[string]any, path string) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := f.Tag.Get("toml")
		if n, ok := tagged(f, "default"); ok && table[key] == nil {
			v.Field(i).SetInt(n)
		}
		if n, ok := tagged(f, "least"); ok && table[key] != nil && v.Field(i).Int() < n {
			return d.errorAt(join(path, key), "%s is %d; expected %d or more, or no %s at all", key, v.Field(i).Int(), n, key)
		}
	}
	return nil
}

// tagged is the number that a tag of a field says.
func tagged(f reflect.StructField, tag string) (n int64, ok bool) {
	value, ok := f.Tag.Lookup(tag)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		panic("lab: the " + tag + " of " + f.Name + " is no whole number")
	}
	return n, true
}

// fieldsOf are the fields of a struct by their keys.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := make(map[string]reflect.Value)
	for i := range v.NumField() {
		if key := v.Type().Field(i).Tag.Get("toml"); key != "" && key != "-" {
			fields[key] = v.Field(i)
		}
	}
	return fields
}

// keys are those of a table, in their order in the file.
func (d *decoder) keys(table map[string]any, path string) []string {
	return slices.SortedFunc(maps.Keys(table), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.lines[join(path, a)], d.lines[join(path, b)]), cmp.Compare(a, b))
	})
}

// unknown says that there is no such key, and which was meant.
func (d *decoder) unknown(key string, fields map[string]reflect.Value, path string) error {
	names := slices.Sorted(maps.Keys(fields))
	where := "a scenario"
	if path != "" {
		where = path[strings.LastIndexByte(path, '.')+1:]
		if at := strings.IndexByte(where, '['); at > 0 {
			where = "a " + where[:at]
		}
	}
	if near := nearest(key, names); near != "" {
		return d.errorAt(join(path, key), "%q is no key of %s; expected %s, perhaps", key, where, near)
	}
	return d.errorAt(join(path, key), "%q is no key of %s; expected one of %s", key, where, strings.Join(names, ", "))
}

func (d *decoder) setMap(v reflect.Value, got any, path string) error {
	table, ok := got.(map[string]any)
	if !ok {
		return d.mistyped(v, got, path)
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, key := range d.keys(table, path) {
		value := reflect.New(v.Type().Elem()).Elem()
		if err := d.set(value, table[key], join(path, key)); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	return nil
}

func (d *decoder) setSlice(v reflect.Value, got any, path string) error {
	list := reflect.ValueOf(got)
	if list.Kind() != reflect.Slice {
		return d.mistyped(v, got, path)
	}
	v.Set(reflect.MakeSlice(v.Type(), list.Len(), list.Len()))
	for i := range list.Len() {
		if err := d.set(v.Index(i), list.Index(i).Interface(), path+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	return nil
}

// join is the path of a key in a table.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest is the name that a misspelt one was meant to be, "" if none is near: one that
// differs in two letters at most, and in less than half of them.
func nearest(misspelt string, names []string) (near string) {
	least := min(3, (len(misspelt)+2)/2)
	for _, name := range names {
		if n := distance(misspelt, name); n < least {
			near, least = name, n
		}
	}
	return near
}

// distance is how many letters have to be put in, taken out or changed to make b of a.
func distance(a, b string) int {
	if len(a) > 100 || len(b) > 100 {
		return 100
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := left
			if a[i] != b[j] {
				change++
			}
			left = row[j+1]
			row[j+1] = min(change, row[j]+1, left+1)
		}
	}
	return row[len(b)]
}
