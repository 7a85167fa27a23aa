// Print each datapoint of a dataset or a Bag as a line of JSON. The values are the stored bytes
// in base64. tests/conformance/run.py runs this program.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
	"strings"

	"example.org/bags"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// read returns the items of a field; JSON encodes bytes as base64.
func read(reader *bags.Reader, index uint64, field bags.Field) any {
	count, err := reader.Items(index, field.Name)
	check(err)
	items := make([][]byte, count)
	for item := range items {
		check(reader.View(index, field.Name, uint64(item), func(blob []byte) error {
			items[item] = append([]byte{}, blob...)
			return nil
		}))
	}
	if strings.HasSuffix(field.Type, "[]") {
		return items
	}
	return items[0]
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: reader PATH")
	}
	buffer := bufio.NewWriter(os.Stdout)
	out := json.NewEncoder(buffer)
	if strings.HasSuffix(os.Args[1], ".bag") {
		bag, err := bags.OpenBag(os.Args[1], &bags.ReaderOptions{AllowEmptyFile: true})
		check(err)
		for index := uint64(0); index < bag.Len(); index++ {
			check(bag.View(index, func(blob []byte) error { return out.Encode(map[string]any{"blob": blob}) }))
		}
		bag.Close()
	} else {
		reader, err := bags.Open(os.Args[1], nil)
		check(err)
		for index := uint64(0); index < reader.Len(); index++ {
			row := map[string]any{}
			for _, field := range reader.Fields() {
				row[field.Name] = read(reader, index, field)
			}
			check(out.Encode(row))
		}
		reader.Close()
	}
	check(buffer.Flush())
}
