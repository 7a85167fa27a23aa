package bags

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

var fields = []Field{{"array", "array(int16,2)"}, {"bytes", "bytes"}, {"half", "array(float64)"}, {"number", "u64"}, {"signed", "i64"}, {"words", "utf8[]"}}

func datapoint(i int) Datapoint {
	words := Sequence{}
	for j := 0; j < i%3; j++ {
		words = append(words, fmt.Sprint("word ", j))
	}
	return Datapoint{"array": Array{"int16", []uint64{2}, []byte{byte(i), 0, 1, 1}}, "bytes": bytes.Repeat([]byte{byte(i)}, i),
		"half": 0.5, "number": math.MaxUint64 - uint64(i), "signed": int64(-i), "words": words}
}

// The datapoint as a reader returns it: single elements become arrays.
func stored(i int) Datapoint {
	out := datapoint(i)
	out["half"] = Array{"float64", []uint64{}, []byte{0, 0, 0, 0, 0, 0, 0xe0, 0x3f}}
	return out
}

func write(t *testing.T, path string, count int, options *WriterOptions) {
	t.Helper()
	writer, err := Create(path, fields, options)
	for i := 0; err == nil && i < count; i++ {
		err = writer.Append(datapoint(i))
	}
	if err == nil && writer.Len() != uint64(count) {
		t.Fatal(writer.Len())
	}
	if err == nil {
		err = writer.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err error, code Code, words string) {
	t.Helper()
	if !errors.Is(err, code) || !strings.Contains(err.Error(), words) {
		t.Fatalf("%v, expected %v: %s", err, code, words)
	}
}

func TestGoroutinesReadWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	write(t, path, 100, &WriterOptions{ShardLength: 30, Checksum: true})
	for _, options := range []*ReaderOptions{nil, {VerifyChecksums: true, NoMmap: true}} {
		reader, err := Open(path, options)
		if err != nil {
			t.Fatal(err)
		}
		if reader.Len() != 100 || !reflect.DeepEqual(reader.Fields(), fields) {
			t.Fatal(reader.Len(), reader.Fields())
		}
		var all sync.WaitGroup
		for first := 0; first < 4; first++ {
			all.Add(1)
			go func(first int) {
				defer all.Done()
				for i := first; i < 100; i += 4 {
					found, err := reader.Get(uint64(i))
					if err != nil || !reflect.DeepEqual(found, stored(i)) {
						t.Errorf("datapoint %d: %v, %v", i, found, err)
					}
				}
			}(first)
		}
		all.Wait()
		rows, count := reader.Rows("words", "signed"), 0
		for rows.Next() {
			want := stored(count)
			if !reflect.DeepEqual(rows.Datapoint(), Datapoint{"words": want["words"], "signed": want["signed"]}) {
				t.Fatal(count, rows.Datapoint())
			}
			count++
		}
		if rows.Err() != nil || count != 100 {
			t.Fatal(rows.Err(), count)
		}
		reader.Close()
		_, err = reader.Get(0)
		is(t, err, State, "closed")
		reader.Close()
	}
}

func TestAViewIsTheStoredBlob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	write(t, path, 5, nil)
	reader, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	stop := errors.New("stop")
	if err := reader.View(4, "bytes", 0, func(blob []byte) error {
		if string(blob) != "\x04\x04\x04\x04" {
			t.Error(blob)
		}
		return stop
	}); err != stop {
		t.Fatal(err)
	}
	count, err := reader.Items(2, "words")
	if err != nil || count != 2 {
		t.Fatal(count, err)
	}
	is(t, reader.View(2, "words", 2, nil), Range, "item")
	is(t, reader.View(2, "none", 0, nil), NoField, `"none"`)
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	_, err := Open(path, nil)
	is(t, err, Missing, path)
	_, err = Open("a\x00b", nil)
	is(t, err, Argument, "NUL")
	write(t, path, 3, nil)
	_, err = Create(path, fields, nil)
	is(t, err, Exists, path)
	_, err = Create(path+"2", []Field{{"a", "int("}}, nil)
	is(t, err, Type, "int(")
	reader, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	_, err = reader.Get(3)
	is(t, err, Range, "datapoint index 3 out of range (length 3)")
	_, err = reader.Get(0, "none")
	is(t, err, NoField, `"none"`)
}

func TestARefusedDatapointIsTheErrorOfClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	writer, err := Create(path, []Field{{"a", "int(1)"}, {"b", "array(int16)"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	array := func(data ...byte) Array { return Array{"int16", nil, data} }
	is(t, writer.Append(Datapoint{"a": 300, "b": array(1, 0)}), BadValue, "300")
	is(t, writer.Append(Datapoint{"a": 3}), NoField, `"b"`)
	is(t, writer.Append(Datapoint{"a": 3, "b": array(1)}), BadValue, "1 bytes")
	is(t, writer.Append(Datapoint{"a": 3, "b": Array{"int17", nil, nil}}), Type, "int17")
	is(t, writer.Append(Datapoint{"a": 3, "b": Array{"int16", []uint64{math.MaxUint64, 9}, nil}}), BadValue, "too large")
	is(t, writer.Append(Datapoint{"a": 3, "b": struct{}{}}), BadValue, "struct")
	if err := writer.Append(Datapoint{"a": 3, "b": array(1, 0)}); err != nil {
		t.Fatal(err)
	}
	is(t, writer.Close(), BadValue, "300")
	is(t, writer.Append(Datapoint{"a": 3, "b": array(1, 0)}), Argument, "")
	reader, err := Open(path, nil)
	if err != nil || reader.Len() != 1 {
		t.Fatal(err)
	}
	reader.Close()
}

func TestAWriterThatIsNotClosedLeavesItsShardUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	writer, err := Create(path, []Field{{"a", "int(1)"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Append(Datapoint{"a": 3}); err != nil {
		t.Fatal(err)
	}
	if err := writer.Flush(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, nil)
	is(t, err, Unfinished, path)
	reader, err := Open(path, &ReaderOptions{ReadUnfinished: true})
	if err != nil || reader.Len() != 1 {
		t.Fatal(err)
	}
	reader.Close()
	writer.Abort()
	_, err = Open(path, nil)
	is(t, err, Missing, path)
}
