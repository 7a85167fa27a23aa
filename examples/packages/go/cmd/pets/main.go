// Write a dataset of pets, and read it: go run ./cmd/pets DIRECTORY
package main

import (
	"errors"
	"fmt"
	"log"
	"os"

	"example.org/bags"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	log.SetFlags(0)
	writer, err := bags.Create(os.Args[1], []bags.Field{{Name: "label", Type: "int(4)"}, {Name: "words", Type: "utf8[]"}}, nil)
	check(err)
	check(writer.Append(bags.Datapoint{"label": 7, "words": bags.Sequence{"a", "cat"}}))
	check(writer.Append(bags.Datapoint{"label": 8, "words": bags.Sequence{}}))
	check(writer.Close())

	reader, err := bags.Open(os.Args[1], nil)
	check(err)
	defer reader.Close()
	fmt.Println(reader.Fields())
	rows := reader.Rows()
	for rows.Next() {
		fmt.Println(rows.Index(), rows.Datapoint()["label"], rows.Datapoint()["words"])
	}
	check(rows.Err())
	// View one item of one datapoint without a copy. It is only valid inside the function.
	check(reader.View(0, "words", 1, func(blob []byte) error {
		fmt.Println(string(blob))
		return nil
	}))
	_, err = reader.Get(2)
	fmt.Println(errors.Is(err, bags.Range), err)
}
