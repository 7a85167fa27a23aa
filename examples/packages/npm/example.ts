import {open, type Dataset, type Value} from 'bags-reader';

export async function words(address: string | URL): Promise<string[]> {
  const pets: Dataset = await open(address);
  const labels = await pets.column('label');
  const first: Record<string, Value> = await pets.get(0, ['words', 'label']);
  const found: number[] = await pets.find('label', 7);
  const names: string[] = pets.fields.map(field => `${field.name}: ${field.type}`);
  pets.close();
  const list = first.words;
  return [...names, ...(Array.isArray(list) ? list.map(String) : []), `${labels.length} ${found.length}`];
}

export const from_file = async (file: File): Promise<number> => (await open(file)).length;
